/** Keeps a conversation connected: dials, and dials again after breaks, until a deadline. */
import type { Duplex } from 'node:stream';
import { Connection } from './connection.js';
import { Conversation } from './conversation.js';
import { AgentError } from './errors.js';
import { settle } from './settle.js';
import type { AgentDialer } from './types.js';

/** Pauses between attempts that led nowhere: none, then from the first of these to the second, doubling, in ms. */
const BACKOFF_MS = [5, 250] as const;

/** Connections in a row on which nothing but the greeting came, after which the deadline is not put off any more. */
const MAX_FRUITLESS = 20;

export interface LinkOptions {
  dial: AgentDialer;
  sessionId: Buffer;
  connectTimeoutMs: number;
  reconnectTimeoutMs: number;
  keepalive: { idleMs: number; answerMs: number };
}

export class Link {
  readonly conversation: Conversation;
  /** Resolves when the session has ended. */
  readonly closed: Promise<void>;
  /** Resolves at the first RESUMED with whether the guest still held the session. */
  readonly opened: Promise<boolean>;
  readonly #o: LinkOptions;
  readonly #over = new AbortController();
  #resolveOpened!: (resumed: boolean) => void;
  #rejectOpened!: (error: Error) => void;
  #deadline: NodeJS.Timeout | undefined;
  #lastError: Error | null = null;
  #fruitless = 0;
  #connected = false;
  #everOpen = false;

  constructor(o: LinkOptions) {
    this.#o = o;
    this.opened = new Promise((resolve, reject) => {
      this.#resolveOpened = resolve;
      this.#rejectOpened = reject;
    });
    this.opened.catch(() => {});
    this.closed = new Promise((resolve) => {
      this.#over.signal.addEventListener('abort', () => resolve(), { once: true });
    });
    this.conversation = new Conversation(
      o.sessionId,
      {
        opened: (resumed) => {
          this.#everOpen = true;
          if (this.#fruitless < MAX_FRUITLESS) {
            clearTimeout(this.#deadline);
            this.#deadline = undefined;
          }
          this.#resolveOpened(resumed);
        },
        broken: (error) => this.#broke(error),
        ended: (error) => {
          clearTimeout(this.#deadline);
          this.#rejectOpened(error);
          this.#over.abort();
        },
      },
      o.keepalive,
    );
    this.#startDeadline(o.connectTimeoutMs);
    void this.#dial();
  }

  #broke(error: Error): void {
    this.#connected = false;
    this.#lastError = error;
    this.#fruitless = this.conversation.progressed ? 0 : this.#fruitless + 1;
    // A guest that answers SYNC and then nothing is as gone as one that does not answer.
    if (this.#deadline === undefined) this.#startDeadline(this.#o.reconnectTimeoutMs);
    void this.#dial();
  }

  #startDeadline(ms: number): void {
    this.#deadline = setTimeout(() => {
      this.#deadline = undefined;
      if (this.#connected && this.conversation.progressed) return;
      const why = this.#lastError ? `: ${this.#lastError.message}` : '';
      const what = this.#everOpen ? 'did not come back' : 'did not answer';
      this.conversation.end(
        new AgentError('unreachable', `the guest agent ${what} within ${ms} ms${why}`, {
          cause: this.#lastError ?? undefined,
        }),
      );
    }, ms);
  }

  async #dial(): Promise<void> {
    const { signal } = this.#over;
    while (!signal.aborted) {
      if (this.#fruitless > 1) await pause(backoff(this.#fruitless - 1), signal);
      if (signal.aborted) return;
      let duplex: Duplex;
      try {
        const dialled = this.#o.dial(signal);
        // A dialer that does not mind its signal must not leave its connection behind.
        dialled.then((late) => signal.aborted && late.destroy()).catch(() => {});
        duplex = await settle(dialled, { signal }, 'dial', () => {});
      } catch (error) {
        this.#lastError = error instanceof Error ? error : new Error(String(error));
        this.#fruitless++;
        continue;
      }
      this.#connected = true;
      this.conversation.use(new Connection(duplex, this.#o.sessionId, this.conversation));
      return;
    }
  }
}

function backoff(attempt: number): number {
  return Math.min(BACKOFF_MS[1], BACKOFF_MS[0] * 2 ** (attempt - 1));
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const stop = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', stop);
      resolve();
    };
    const timer = setTimeout(stop, ms);
    signal.addEventListener('abort', stop, { once: true });
  });
}
