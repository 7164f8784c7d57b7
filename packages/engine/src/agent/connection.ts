/** One connection to the agent: the SYNC at its start, then frames, written together once per tick. */
import { randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { AGENT_PROTOCOL_VERSION } from '@forkd/wire';
import { AgentError } from './errors.js';
import { encodeSync, type Frame, FrameParser, type SyncReply } from './frames.js';

/** SYNC is sent again after this long, then twice as long and so on: a guest that boots may lose the first. */
const SYNC_AGAIN_MS = 1000;
/** Bytes that may wait in the socket before streams are held back; answers and acknowledgements always go. */
const BACKLOG = 128 * 1024;

export interface ConnectionHandler {
  synced(reply: SyncReply): void;
  frame(frame: Frame): void;
  /** The tick's frames are about to leave: the last moment to add to them while there is {@link Connection.room}. */
  flushing(): void;
  /** Told once; the connection is destroyed by then. */
  broken(error: Error): void;
}

export class Connection {
  readonly #duplex: Duplex;
  readonly #session: Buffer;
  readonly #handler: ConnectionHandler;
  readonly #parser: FrameParser;
  #out: Buffer[] = [];
  #outBytes = 0;
  #scheduled = false;
  #over = false;
  #syncTimer: NodeJS.Timeout | undefined;
  /** When bytes last came, ms of the monotonic clock. */
  lastHeard = performance.now();

  constructor(duplex: Duplex, session: Buffer, handler: ConnectionHandler) {
    this.#duplex = duplex;
    this.#session = session;
    this.#handler = handler;
    const nonce = randomBytes(16);
    this.#parser = new FrameParser(
      nonce,
      (reply) => this.#replied(reply),
      (frame) => {
        // A handler may end the connection amid a chunk; the rest of it is nobody's.
        if (!this.#over) this.#handler.frame(frame);
      },
    );
    duplex.on('data', (chunk: Buffer) => this.#heard(chunk));
    // A dialer that has read an answer of its own left it paused, so that nothing after that is lost.
    duplex.resume();
    duplex.on('drain', () => this.schedule());
    duplex.on('error', (error) => this.#break(error));
    duplex.on('end', () => this.#break(new Error('the connection to the agent ended')));
    duplex.on('close', () => this.#break(new Error('the connection to the agent was closed')));
    this.#sync(nonce, SYNC_AGAIN_MS);
  }

  /** False: hold streams back; `flushing` is told again when there is room. */
  get room(): boolean {
    return this.#duplex.writableLength + this.#outBytes < BACKLOG;
  }

  /** Queues a frame; all frames of one tick leave in one write. */
  send(frame: Buffer): void {
    if (this.#over) return;
    this.#out.push(frame);
    this.#outBytes += frame.length;
    this.schedule();
  }

  /** Asks for a flush at the end of this tick. */
  schedule(): void {
    if (this.#scheduled || this.#over) return;
    this.#scheduled = true;
    process.nextTick(() => this.flush());
  }

  flush(): void {
    if (this.#over) return;
    this.#scheduled = true;
    this.#handler.flushing();
    this.#scheduled = false;
    if (this.#out.length === 0) return;
    const out = this.#out;
    this.#out = [];
    this.#outBytes = 0;
    if (out.length === 1) {
      this.#duplex.write(out[0]);
      return;
    }
    this.#duplex.cork();
    for (const frame of out) this.#duplex.write(frame);
    this.#duplex.uncork();
  }

  /** Ends it; the handler hears nothing any more. */
  destroy(): void {
    this.flush();
    this.#over = true;
    clearTimeout(this.#syncTimer);
    // What was just written still goes out; a peer that does not read is not waited for.
    this.#duplex.end();
    setImmediate(() => this.#duplex.destroy());
  }

  #sync(nonce: Buffer, again: number): void {
    this.#parser.expect(nonce);
    this.#duplex.write(encodeSync(nonce, this.#session));
    this.#syncTimer = setTimeout(() => {
      if (!this.#over && !this.#parser.synced) this.#sync(randomBytes(16), again * 2);
    }, again);
    this.#syncTimer.unref();
  }

  #replied(reply: SyncReply): void {
    clearTimeout(this.#syncTimer);
    if (reply.version !== AGENT_PROTOCOL_VERSION)
      throw new AgentError(
        'version',
        `the guest agent speaks protocol version ${reply.version}, this forkd speaks ${AGENT_PROTOCOL_VERSION}: use a forkd of the snapshot's version, or build the template again`,
      );
    if (!reply.session.equals(this.#session))
      throw new AgentError('protocol', 'the guest agent answered for another session');
    this.#handler.synced(reply);
  }

  #heard(chunk: Buffer): void {
    if (this.#over) return;
    this.lastHeard = performance.now();
    try {
      this.#parser.push(chunk);
    } catch (error) {
      this.#break(error instanceof Error ? error : new Error(String(error)));
    }
  }

  #break(error: Error): void {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#syncTimer);
    this.#duplex.destroy();
    this.#handler.broken(error);
  }

  /** Breaks it off from this side: the handler dials again. */
  breakOff(error: Error): void {
    this.#break(error);
  }
}
