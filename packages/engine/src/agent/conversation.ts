/**
 * A session's conversation: its table of requests, and what makes it outlive connections. Every rule of the protocol about
 * who sends what again lives in `#resume`.
 */
import { frameTypes, requestStates, verbs } from '@forkd/wire';
import { InChannel, OutChannel } from './channels.js';
import type { Connection, ConnectionHandler } from './connection.js';
import { AgentError } from './errors.js';
import { broken, type FieldReader, FieldWriter } from './fields.js';
import {
  encodeFrame,
  encodeOffsets,
  encodeRequest,
  type Frame,
  readOffset,
  type SyncReply,
} from './frames.js';
import { Keepalive } from './keepalive.js';
import { Request, type Verb } from './request.js';
import { refuseAborted, settle } from './settle.js';

/** Breaches of the protocol within {@link FAULT_SPAN_MS} after which a guest is not believed any more. */
const MAX_FAULTS = 3;
const FAULT_SPAN_MS = 60_000;
/** Largest request as the guest joins it: verb and reserved bytes, then fields. */
const MAX_REQUEST_FIELDS = 1024 * 1024 - 4;

export interface BeginOptions {
  /** Channel 0 exists. */
  input?: boolean;
  outputs?: readonly { channel: number; anyStart?: boolean; holdEnd?: boolean; optional?: boolean }[];
}

export interface CallOptions {
  signal?: AbortSignal | undefined;
  deadlineMs?: number;
}

/** What a session needs of whoever makes connections. */
export interface ConversationEvents {
  /** RESUMED was taken: requests flow. */
  opened(resumed: boolean): void;
  /** The connection broke; another is wanted. */
  broken(error: Error): void;
  /** The session is over. */
  ended(error: AgentError): void;
}

export class Conversation implements ConnectionHandler {
  readonly sessionId: Buffer;
  readonly #events: ConversationEvents;
  readonly #requests = new Map<number, Request>();
  readonly #dirty = new Map<InChannel, Request>();
  readonly #hungry = new Set<OutChannel>();
  readonly #keepalive: Keepalive;
  #connection: Connection | null = null;
  #reply: SyncReply | null = null;
  /** Frames may be sent: RESUMED has come on this connection. */
  #open = false;
  #everOpen = false;
  #endExpected = false;
  #nextId = 1;
  #faults: number[] = [];
  #ended: AgentError | null = null;

  constructor(
    sessionId: Buffer,
    events: ConversationEvents,
    keepalive: { idleMs: number; answerMs: number },
  ) {
    this.sessionId = sessionId;
    this.#events = events;
    this.#keepalive = new Keepalive(keepalive, {
      needed: () => this.#open && this.#requests.size > 0,
      lastHeard: () => this.#connection?.lastHeard ?? 0,
      send: (payload) => this.#send(encodeFrame(frameTypes.PING, 0, 0, payload)),
      silent: (ms) =>
        this.#connection?.breakOff(
          new AgentError('unreachable', `the guest agent did not answer for ${Math.round(ms)} ms`),
        ),
    });
  }

  get ended(): AgentError | null {
    return this.#ended;
  }

  /** Bytes have moved on this connection since it was resumed. */
  progressed = false;

  use(connection: Connection): void {
    this.#connection = connection;
    this.#reply = null;
    this.#open = false;
    this.progressed = false;
  }

  /** Sends a request. It goes out in this tick, or when there is a connection again. */
  begin(verb: Verb, fields: FieldWriter, o: BeginOptions = {}): Request {
    if (this.#ended) throw this.#ended;
    if (fields.size > MAX_REQUEST_FIELDS)
      throw new AgentError(
        'too_large',
        `${verb.toLowerCase()} takes ${MAX_REQUEST_FIELDS} bytes of arguments, got ${fields.size}`,
      );
    const id = this.#nextId++;
    const input = o.input ? new OutChannel(id, (channel) => this.#wake(channel)) : null;
    let request: Request | null = null;
    const outputs = (o.outputs ?? []).map(
      ({ channel, ...rest }) =>
        new InChannel(
          channel,
          (moved) => {
            if (request === null || request.isOver || request.isReset) return;
            this.#dirty.set(moved, request);
            this.#connection?.schedule();
          },
          rest,
        ),
    );
    const streaming = input !== null || outputs.length > 0;
    request = new Request(id, verb, fields.finish(), streaming, input, outputs);
    this.#requests.set(id, request);
    if (this.#open) this.#transmit(request, verb);
    this.#keepalive.wake();
    return request;
  }

  /** A request without streams: its answer. */
  async call(verb: Verb, fields: FieldWriter, o: CallOptions = {}): Promise<FieldReader> {
    refuseAborted(verb.toLowerCase(), o.signal);
    const request = this.begin(verb, fields);
    return await this.wait(request, request.answered, o);
  }

  /** Waits for a part of a request; a signal or deadline that comes first resets the request. */
  async wait<T>(request: Request, promise: Promise<T>, o: CallOptions): Promise<T> {
    return await settle(promise, o, request.verb.toLowerCase(), (error) => this.reset(request, error));
  }

  /** The caller wants no more of it. The guest may still answer; nobody listens. */
  reset(request: Request, error: AgentError): void {
    if (request.isOver || request.isReset) return;
    request.abandon(error);
    if (this.#open) this.#send(encodeFrame(frameTypes.RESET, 0, request.id));
  }

  async ping(o: CallOptions = {}): Promise<void> {
    if (this.#ended) throw this.#ended;
    const answer = this.#keepalive.ping(this.#open);
    await settle(answer, { deadlineMs: 10_000, ...o }, 'ping', () => {});
  }

  end(error: AgentError): void {
    if (this.#ended) return;
    this.#ended = error;
    if (this.#open) {
      for (const request of this.#requests.values())
        if (!request.isReset) this.#send(encodeFrame(frameTypes.RESET, 0, request.id));
    }
    this.#open = false;
    this.#connection?.destroy();
    this.#connection = null;
    const requests = [...this.#requests.values()];
    this.#requests.clear();
    this.#dirty.clear();
    this.#hungry.clear();
    this.#keepalive.end(error);
    for (const request of requests) request.fail(error);
    this.#events.ended(error);
  }

  /** The machine is paused from now on, or runs again. */
  paused(paused: boolean): void {
    this.#keepalive.pause(paused);
  }

  /** The machine is about to go: the next break is the session's end. */
  expectEnd(expected: boolean): void {
    this.#endExpected = expected;
  }

  synced(reply: SyncReply): void {
    if (this.#everOpen && !reply.resumed)
      throw new AgentError(
        'session_lost',
        'the guest agent does not know this session any more: it was replaced by another, or the guest was restarted',
      );
    this.#reply = reply;
  }

  frame(frame: Frame): void {
    const { type, payload } = frame;
    if (type === frameTypes.RESUMED) {
      if (this.#open || this.#reply === null) throw broken('RESUMED amid a conversation');
      this.#resume(payload, this.#reply);
      return;
    }
    if (!this.#open) throw broken(`frame of type ${type} before RESUMED`);
    this.progressed = true;
    if (type === frameTypes.PING) this.#send(encodeFrame(frameTypes.PONG, 0, 0, payload));
    else if (type === frameTypes.PONG) this.#keepalive.pong(payload);
    else {
      const request = this.#requests.get(frame.id);
      if (request) this.#take(request, frame);
      else if (frame.id >= this.#nextId) throw broken(`answer to request ${frame.id}, which was never made`);
    }
  }

  flushing(): void {
    if (!this.#open || this.#connection === null) return;
    for (const [channel, request] of this.#dirty) {
      this.#dirty.delete(channel);
      if (!request.isOver && !request.isReset) this.#acknowledge(request, channel, false);
    }
    // One frame of each stream in turn, so that a large upload does not hold up a keystroke.
    while (this.#hungry.size > 0 && this.#connection.room) {
      for (const channel of this.#hungry) {
        const next = channel.next();
        if (next === null) this.#hungry.delete(channel);
        else if (next !== 'end') this.#send(next);
        else this.#send(encodeOffsets(frameTypes.EOF, 0, channel.id, channel.endOffset));
      }
    }
  }

  broken(error: Error): void {
    this.#connection = null;
    this.#open = false;
    this.#keepalive.disconnected();
    if (this.#endExpected) this.end(new AgentError('closed', 'the machine was powered off'));
    else if (error instanceof AgentError && this.#isFatal(error)) this.end(error);
    else this.#events.broken(error);
  }

  #isFatal(error: AgentError): boolean {
    if (error.code === 'version' || error.code === 'session_lost') return true;
    if (error.code !== 'protocol') return false;
    const now = performance.now();
    this.#faults = this.#faults.filter((at) => now - at < FAULT_SPAN_MS);
    this.#faults.push(now);
    return this.#faults.length >= MAX_FAULTS;
  }

  #take(request: Request, { type, sub, payload }: Frame): void {
    if (type === frameTypes.RES) {
      if (request.answer(payload)) this.#forget(request);
    } else if (type === frameTypes.DONE) {
      request.finish(payload);
      this.#forget(request);
    } else if (type === frameTypes.ACK) {
      const received = readOffset(payload, 0);
      // Before its answer a guest cannot know that no input comes: that it has nothing of it is true.
      if (sub !== 0 || (!request.input && received > 0))
        throw broken(`ACK of channel ${sub} of a ${request.verb}`);
      request.input?.acknowledge(received, readOffset(payload, 8));
    } else if (request.isReset) {
      // Under way when the reset was sent.
    } else if (type === frameTypes.DATA) {
      request.output(sub).receive(readOffset(payload, 0), payload.subarray(8));
    } else if (type === frameTypes.EOF) request.output(sub).end(readOffset(payload, 0));
    else if (type === frameTypes.GAP) request.output(sub).gap(readOffset(payload, 0), readOffset(payload, 8));
  }

  /** The host has all of it: the guest may forget it. */
  #forget(request: Request): void {
    this.#requests.delete(request.id);
    for (const output of request.outputs) this.#dirty.delete(output);
    if (request.input) this.#hungry.delete(request.input);
    this.#send(encodeFrame(frameTypes.FIN, 0, request.id));
  }

  #resume(payload: Buffer, reply: SyncReply): void {
    const { highest, live } = readResumed(payload);
    this.#open = true;
    const first = !this.#everOpen;
    this.#everOpen = true;
    // A session taken over goes on above what its guest has begun.
    if (first) this.#nextId = highest + 1;
    if (highest >= this.#nextId) throw broken(`has begun request ${highest}, which was never made`);
    for (const id of live.keys()) if (!this.#requests.has(id)) this.#send(encodeFrame(frameTypes.FIN, 0, id));
    for (const request of [...this.#requests.values()]) {
      const state = live.get(request.id);
      if (request.id > highest || state?.state === requestStates.RECEIVING) this.#transmitAgain(request);
      else if (state === undefined) {
        this.#requests.delete(request.id);
        request.fail(new AgentError('session_lost', `the guest agent has forgotten a ${request.verb}`));
      } else this.#continue(request, state.received);
    }
    this.#keepalive.connected();
    this.#events.opened(reply.resumed);
    this.#connection?.schedule();
  }

  #continue(request: Request, received: number): void {
    request.payload = null;
    if (request.isReset) {
      this.#send(encodeFrame(frameTypes.RESET, 0, request.id));
      return;
    }
    for (const output of request.outputs) this.#acknowledge(request, output, true);
    if (!request.input) return;
    const { frames, ended } = request.input.replay(received);
    for (const frame of frames) this.#send(frame);
    if (ended) this.#send(encodeOffsets(frameTypes.EOF, 0, request.id, request.input.endOffset));
  }

  #transmitAgain(request: Request): void {
    if (request.isReset) {
      // It was given up before the guest had it. Its id has to be used, but for something without effect.
      const payload = new FieldWriter().text('path', '/').finish();
      const harmless = new Request(request.id, 'STAT', payload, false, null, []);
      harmless.isReset = true;
      this.#requests.set(request.id, harmless);
      this.#transmit(harmless, 'STAT');
    } else this.#transmit(request, request.verb);
  }

  #transmit(request: Request, verb: Verb): void {
    if (request.payload === null)
      throw new AgentError('session_lost', `the guest agent has lost a ${request.verb} that it had begun`);
    const head = Buffer.alloc(4);
    head.writeUInt16LE(verbs[verb]);
    for (const frame of encodeRequest(request.id, Buffer.concat([head, request.payload]))) this.#send(frame);
  }

  #acknowledge(request: Request, channel: InChannel, force: boolean): void {
    const ack = channel.acknowledgement(force);
    if (ack) this.#send(encodeOffsets(frameTypes.ACK, channel.number, request.id, ack.received, ack.limit));
  }

  #wake(channel: OutChannel): void {
    this.#hungry.add(channel);
    this.#connection?.schedule();
  }

  #send(frame: Buffer): void {
    this.#connection?.send(frame);
  }
}

function readResumed(payload: Buffer): {
  highest: number;
  live: Map<number, { state: number; received: number }>;
} {
  const count = payload.readUInt32LE(4);
  if (payload.length !== 8 + 16 * count)
    throw broken(`RESUMED of ${count} requests in ${payload.length} bytes`);
  const live = new Map<number, { state: number; received: number }>();
  for (let at = 8; at < payload.length; at += 16)
    live.set(payload.readUInt32LE(at), {
      state: payload.readUInt32LE(at + 4),
      received: readOffset(payload, at + 8),
    });
  return { highest: payload.readUInt32LE(0), live };
}
