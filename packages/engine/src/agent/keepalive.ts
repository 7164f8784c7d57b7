/**
 * Notices an agent that has gone silent. Only while something is asked of it: an idle guest is not woken for nothing, and a
 * VMM that dies closes the connection anyway.
 */
import { AgentError } from './errors.js';

export interface KeepaliveTarget {
  /** There is a connection, and someone waits for something. */
  needed(): boolean;
  /** When bytes last came, in ms of `performance.now()`. */
  lastHeard(): number;
  send(payload: Buffer): void;
  /** No byte has come for `ms` although a ping was sent. */
  silent(ms: number): void;
}

export class Keepalive {
  readonly #idleMs: number;
  readonly #answerMs: number;
  readonly #target: KeepaliveTarget;
  readonly #waiting = new Map<bigint, { resolve: () => void; reject: (error: Error) => void }>();
  #timer: NodeJS.Timeout | undefined;
  #asked = 0;
  #count = 0n;
  #paused = false;
  /** When the machine last went on, as lastHeard. */
  #resumed = 0;

  constructor(o: { idleMs: number; answerMs: number }, target: KeepaliveTarget) {
    this.#idleMs = o.idleMs;
    this.#answerMs = o.answerMs;
    this.#target = target;
  }

  /** Something is asked of the guest: watch over it. */
  wake(): void {
    if (this.#timer === undefined && !this.#paused && this.#target.needed()) this.#arm(this.#idleMs);
  }

  /** The machine stands still, or goes on: while it does, its silence says nothing. */
  pause(paused: boolean): void {
    this.#paused = paused;
    this.#asked = 0;
    this.disconnected();
    if (!paused) this.#resumed = performance.now();
    if (!paused && this.#target.needed()) this.#arm(this.#idleMs);
  }

  connected(): void {
    this.#asked = 0;
    for (const number of this.#waiting.keys()) this.#target.send(payloadOf(number));
    this.wake();
  }

  disconnected(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  end(error: AgentError): void {
    this.disconnected();
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
  }

  /** Resolves when the agent has answered; asked again after a break. */
  ping(connected: boolean): Promise<void> {
    const number = ++this.#count;
    const answer = new Promise<void>((resolve, reject) => this.#waiting.set(number, { resolve, reject }));
    answer.catch(() => {});
    if (connected) this.#target.send(payloadOf(number));
    return answer.finally(() => this.#waiting.delete(number));
  }

  pong(payload: Buffer): void {
    const number = payload.readBigUInt64LE(0);
    if (number > this.#count)
      throw new AgentError('protocol', 'the guest agent answered a ping that was never sent');
    this.#waiting.get(number)?.resolve();
  }

  #arm(ms: number): void {
    this.#timer = setTimeout(() => this.#check(), ms);
    this.#timer.unref();
  }

  #check(): void {
    this.#timer = undefined;
    if (!this.#target.needed()) return;
    const now = performance.now();
    const heard = Math.max(this.#target.lastHeard(), this.#resumed);
    if (heard >= this.#asked) this.#asked = 0;
    if (this.#asked !== 0) {
      if (now - this.#asked >= this.#answerMs) this.#target.silent(now - heard);
      else this.#arm(this.#asked + this.#answerMs - now);
    } else if (now - heard >= this.#idleMs) {
      this.#asked = now;
      this.#target.send(payloadOf(++this.#count));
      this.#arm(this.#answerMs);
    } else this.#arm(heard + this.#idleMs - now);
  }
}

function payloadOf(number: bigint): Buffer {
  const payload = Buffer.alloc(8);
  payload.writeBigUInt64LE(number);
  return payload;
}
