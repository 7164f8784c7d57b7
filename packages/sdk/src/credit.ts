/** Streams whose flow is bounded by credit: the sender spends it by the byte, the receiver gives it back as bytes are taken. */
import { Readable, Writable } from 'node:stream';
import { initialCredit, maxFrameBytes } from '@forkd/api';

/** Credit is given back in steps of at least this many bytes, so that a stream of small frames does not double the traffic. */
const creditStep = initialCredit / 8;

/** Output that nobody kept, as offsets from the start of the stream. */
export interface Gap {
  from: number;
  to: number;
}

/** Bytes from the other side. What nobody has read yet is bounded by the credit, not by this stream. Emits `gap`. */
export class CreditReader extends Readable {
  readonly #giveBack: (bytes: number) => void;
  readonly #waiting: (Buffer | Gap)[] = [];
  #owed = 0;
  #ended = false;
  #wanted = false;

  constructor(giveBack: (bytes: number) => void) {
    // No buffer of its own: each chunk is taken when somebody asks, so that a gap is told in its place, to who listens by then.
    super({ highWaterMark: 0 });
    this.#giveBack = giveBack;
    // Nobody may be listening; the failure is told by the wait of the process too.
    this.on('error', () => undefined);
  }

  /** A frame arrived. */
  give(bytes: Buffer): void {
    if (this.destroyed) {
      this.#took(bytes.length);
      return;
    }
    this.#waiting.push(bytes);
    if (this.#wanted) this._read();
  }

  /** Something is missing between what came and what will come. */
  skip(gap: Gap): void {
    if (this.destroyed) return;
    this.#waiting.push(gap);
    if (this.#wanted) this._read();
  }

  /** No more will come. */
  end(): void {
    this.#ended = true;
    if (this.#wanted || this.#waiting.length === 0) this._read();
  }

  /** The connection broke. */
  fail(error: Error): void {
    if (!this.#ended) this.destroy(error);
  }

  override _read(): void {
    this.#wanted = true;
    while (this.#wanted) {
      const next = this.#waiting.shift();
      if (next === undefined) break;
      if (!Buffer.isBuffer(next)) {
        this.emit('gap', next);
        continue;
      }
      // Before the push, which may ask for more from within.
      this.#wanted = false;
      this.#took(next.length);
      this.push(next);
    }
    if (this.#ended && this.#waiting.length === 0) {
      this.#wanted = false;
      if (!this.readableEnded) this.push(null);
    }
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    // A reader that went away must not stop the writer: what comes from now on is dropped.
    for (const item of this.#waiting.splice(0)) if (Buffer.isBuffer(item)) this.#took(item.length);
    callback(error);
  }

  #took(bytes: number): void {
    this.#owed += bytes;
    if (this.#owed < creditStep) return;
    this.#giveBack(this.#owed);
    this.#owed = 0;
  }
}

/** Bytes to the other side. */
export class CreditWriter extends Writable {
  readonly #send: (bytes: Buffer) => void;
  readonly #sendEnd: () => void;
  #credit = initialCredit;
  #stopped = false;
  #pending: { bytes: Buffer; done: (error?: Error | null) => void } | null = null;

  constructor(send: (bytes: Buffer) => void, sendEnd: () => void) {
    super({ highWaterMark: maxFrameBytes });
    this.#send = send;
    this.#sendEnd = sendEnd;
    this.on('error', () => undefined);
  }

  /** The other side has taken so many bytes. */
  grant(bytes: number): void {
    this.#credit += bytes;
    this.#pump();
  }

  /** The command has ended: what is written from now on is dropped, as nobody will read it. */
  stop(): void {
    this.#stopped = true;
    this.#pump();
  }

  fail(error: Error): void {
    if (!this.#stopped) this.destroy(error);
  }

  override _write(
    chunk: Buffer | string,
    encoding: BufferEncoding,
    done: (error?: Error | null) => void,
  ): void {
    const bytes = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : chunk;
    this.#pending = { bytes, done };
    this.#pump();
  }

  override _final(done: (error?: Error | null) => void): void {
    if (!this.#stopped) this.#sendEnd();
    done();
  }

  #pump(): void {
    const pending = this.#pending;
    if (pending === null) return;
    if (this.#stopped) pending.bytes = Buffer.alloc(0);
    while (pending.bytes.length > 0 && this.#credit > 0) {
      const part = pending.bytes.subarray(0, Math.min(maxFrameBytes, this.#credit));
      pending.bytes = pending.bytes.subarray(part.length);
      this.#credit -= part.length;
      this.#send(part);
    }
    if (pending.bytes.length > 0) return;
    this.#pending = null;
    pending.done();
  }
}
