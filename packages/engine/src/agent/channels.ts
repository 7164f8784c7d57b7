/**
 * The byte streams of a request. Offsets count from the stream's start, so that after a break both ends know exactly what
 * the other has: what came twice is dropped, what did not arrive is sent again.
 */
import { Duplex, Readable, type Stream, Writable } from 'node:stream';
import { INITIAL_WINDOW } from '@forkd/wire';
import { AgentError } from './errors.js';
import { broken } from './fields.js';
import { encodeData } from './frames.js';

/** Received bytes after which the guest is told: it keeps a copy of what it has not been told of. */
const ACK_AFTER = 16 * 1024;
/** The window is opened again once this much of it has been read. */
const LIMIT_AFTER = INITIAL_WINDOW / 4;

type Item = Buffer | { from: number; to: number } | { end: AgentError | null };

/** Guest to host. Holds at most one window of bytes that the consumer has not taken. */
export class InChannel {
  readonly number: number;
  /** The stream may start at any offset (an attach that wants only what comes from now on). */
  readonly #anyStart: boolean;
  readonly #holdEnd: boolean;
  /** The guest may have no such channel: then it ends with the request. */
  readonly #optional: boolean;
  readonly #moved: (channel: InChannel) => void;
  #stream: Readable | null = null;
  #queue: Item[] = [];
  #wanted = false;
  #discarding = false;
  #begun = false;
  #ended = false;
  #finished = false;
  #received = 0;
  #taken = 0;
  #receivedTold = 0;
  #limitTold = INITIAL_WINDOW;

  /** `holdEnd`: the end is passed on only when the request ended well, so that half a file is never taken for a whole one. */
  constructor(
    number: number,
    moved: (channel: InChannel) => void,
    o: { anyStart?: boolean; holdEnd?: boolean; optional?: boolean } = {},
  ) {
    this.number = number;
    this.#moved = moved;
    this.#anyStart = o.anyStart ?? false;
    this.#holdEnd = o.holdEnd ?? false;
    this.#optional = o.optional ?? false;
  }

  /** The stream that takes the bytes. Its `_read` calls {@link pull}, its `_destroy` {@link discard}. */
  attach(stream: Readable): void {
    this.#stream = stream;
  }

  receive(offset: number, bytes: Buffer): void {
    this.#start(offset);
    const end = offset + bytes.length;
    if (end <= this.#received) return;
    if (offset > this.#received)
      throw broken(`channel ${this.number} jumps from ${this.#received} to ${offset}`);
    if (this.#ended) throw broken(`bytes after the end of channel ${this.number}`);
    if (end > this.#limitTold)
      throw broken(`channel ${this.number} at ${end} is over its limit of ${this.#limitTold}`);
    const fresh = offset === this.#received ? bytes : bytes.subarray(this.#received - offset);
    this.#received = end;
    this.#put(fresh);
  }

  gap(from: number, to: number): void {
    if (to < from) throw broken(`gap from ${from} back to ${to}`);
    if (this.#anyStart && !this.#begun) {
      // Not lost: nobody asked for it.
      this.#start(to);
      return;
    }
    if (to <= this.#received) return;
    if (this.#ended) throw broken(`a gap after the end of channel ${this.number}`);
    if (from > this.#received)
      throw broken(`channel ${this.number} jumps from ${this.#received} to a gap at ${from}`);
    const lost = { from: this.#received, to };
    this.#received = to;
    this.#begun = true;
    this.#put(lost);
  }

  end(offset: number): void {
    this.#start(offset);
    if (offset !== this.#received)
      throw broken(`channel ${this.number} ends at ${offset}, after ${this.#received} bytes`);
    if (this.#ended) return;
    this.#ended = true;
    if (!this.#holdEnd) this.#finish(null);
  }

  /** The request is over: nothing more comes. */
  close(error: AgentError | null): void {
    if (error !== null) this.#finish(error);
    else if (this.#ended || this.#optional) this.#finish(null);
    else this.#finish(broken(`no end of channel ${this.number} before the request's`));
  }

  /** The consumer has room. */
  pull(): void {
    this.#wanted = true;
    this.#deliver();
  }

  /** Nobody reads any more; the writer must not wait for it. */
  discard(): void {
    this.#discarding = true;
    this.#queue = [];
    this.#taken = this.#received;
    this.#moved(this);
  }

  /** What to tell the guest now, or null when it need not be told yet. `force`: in any case. */
  acknowledgement(force: boolean): { received: number; limit: number } | null {
    const limit = Math.max(this.#limitTold, this.#taken + INITIAL_WINDOW);
    if (
      !force &&
      this.#received - this.#receivedTold < ACK_AFTER &&
      (limit - this.#limitTold < LIMIT_AFTER || this.#ended)
    )
      return null;
    this.#receivedTold = this.#received;
    this.#limitTold = limit;
    return { received: this.#received, limit };
  }

  #start(offset: number): void {
    if (this.#begun) return;
    this.#begun = true;
    if (!this.#anyStart || offset === 0) return;
    this.#received = offset;
    this.#taken = offset;
    // The guest counts its limit from the stream's start, so it has to be told at once.
    this.#moved(this);
  }

  #finish(error: AgentError | null): void {
    if (this.#finished) return;
    this.#finished = true;
    this.#put({ end: error });
  }

  #put(item: Item): void {
    if (this.#discarding) this.#taken = this.#received;
    else {
      this.#queue.push(item);
      this.#deliver();
    }
    this.#moved(this);
  }

  #deliver(): void {
    const stream = this.#stream;
    if (stream === null) return;
    while (this.#queue.length > 0) {
      const item = this.#queue[0]!;
      if (Buffer.isBuffer(item)) {
        if (!this.#wanted) return;
        this.#wanted = false;
        this.#queue.shift();
        this.#taken += item.length;
        this.#moved(this);
        stream.push(item);
      } else if ('end' in item) {
        this.#queue.shift();
        if (item.end) stream.destroy(item.end);
        else stream.push(null);
      } else {
        // In its place between the bytes: only once the consumer has asked for what follows.
        if (!this.#wanted) return;
        this.#queue.shift();
        this.#taken = item.to;
        this.#moved(this);
        stream.emit('gap', { from: BigInt(item.from), to: BigInt(item.to) });
      }
    }
  }
}

/** Host to guest. Keeps what the guest has not acknowledged: at most what its limit let out. */
export class OutChannel {
  readonly id: number;
  readonly #wake: (channel: OutChannel) => void;
  #open = false;
  #closed: AgentError | null = null;
  #kept: { offset: number; bytes: Buffer }[] = [];
  #acknowledged = 0;
  #sent = 0;
  #limit = INITIAL_WINDOW;
  #chunk: Buffer | null = null;
  #at = 0;
  #written: ((error?: Error | null) => void) | null = null;
  #ending: ((error?: Error | null) => void) | null = null;
  #ended = false;

  constructor(id: number, wake: (channel: OutChannel) => void) {
    this.id = id;
    this.#wake = wake;
  }

  /** The guest has said that it listens. */
  open(): void {
    this.#open = true;
    this.#wake(this);
  }

  write(chunk: Buffer, written: (error?: Error | null) => void): void {
    if (this.#closed) written(this.#closed);
    else if (chunk.length === 0) written();
    else {
      this.#chunk = chunk;
      this.#at = 0;
      this.#written = written;
      this.#wake(this);
    }
  }

  end(ended: (error?: Error | null) => void): void {
    if (this.#closed) ended(this.#closed);
    else {
      this.#ending = ended;
      this.#wake(this);
    }
  }

  /** The next frame, or null when there is nothing to send or no room for it. `'end'`: EOF at {@link endOffset}. */
  next(): Buffer | 'end' | null {
    if (!this.#open || this.#closed) return null;
    if (this.#chunk !== null) {
      const room = this.#limit - this.#sent;
      if (room <= 0) return null;
      const frame = encodeData(this.id, 0, this.#sent, this.#chunk, this.#at, room);
      const bytes = frame.subarray(24);
      this.#kept.push({ offset: this.#sent, bytes });
      this.#sent += bytes.length;
      this.#at += bytes.length;
      if (this.#at === this.#chunk.length) {
        const written = this.#written;
        this.#chunk = null;
        this.#written = null;
        written?.();
      }
      return frame;
    }
    if (this.#ending !== null) {
      const ended = this.#ending;
      this.#ending = null;
      this.#ended = true;
      ended();
      return 'end';
    }
    return null;
  }

  get endOffset(): number {
    return this.#sent;
  }

  acknowledge(received: number, limit: number): void {
    if (received > this.#sent) throw broken(`acknowledges ${received} bytes of ${this.#sent} sent`);
    if (received > this.#acknowledged) {
      this.#acknowledged = received;
      let gone = 0;
      for (const piece of this.#kept) {
        if (piece.offset + piece.bytes.length > received) break;
        gone++;
      }
      if (gone > 0) this.#kept.splice(0, gone);
    }
    if (limit > this.#limit) {
      if (limit - received > 2 ** 31) throw broken(`a limit of ${limit - received} bytes ahead`);
      this.#limit = limit;
      this.#wake(this);
    }
  }

  /** After a break: the frames that carry again what the guest says it does not have. */
  replay(received: number): { frames: Buffer[]; ended: boolean } {
    if (received < this.#acknowledged)
      throw broken(`had acknowledged ${this.#acknowledged} bytes, now has ${received}`);
    this.acknowledge(received, 0);
    const frames: Buffer[] = [];
    for (const piece of this.#kept) {
      let at = Math.max(0, received - piece.offset);
      while (at < piece.bytes.length) {
        const frame = encodeData(this.id, 0, piece.offset + at, piece.bytes, at, piece.bytes.length - at);
        at += frame.length - 24;
        frames.push(frame);
      }
    }
    this.#wake(this);
    return { frames, ended: this.#ended };
  }

  /** The writer has gone before its end. `eof`: the guest sees an end after what was sent, as when a pipe's writer dies. */
  drop(eof: boolean): void {
    if (this.#closed || this.#ended) return;
    if (!eof) {
      this.close(new AgentError('closed', 'the stream was closed by its writer'));
      return;
    }
    const written = this.#written;
    this.#chunk = null;
    this.#written = null;
    this.#ending ??= () => {};
    written?.();
    this.#wake(this);
  }

  /** Nobody listens any more: what waits fails. */
  close(error: AgentError): void {
    if (this.#closed) return;
    this.#closed = error;
    this.#kept = [];
    this.#chunk = null;
    const written = this.#written ?? this.#ending;
    this.#written = null;
    this.#ending = null;
    written?.(error);
  }
}

/** A stream that ends in an error must not end the daemon when nobody listens to it. */
export function unfussy<T extends Stream>(stream: T): T {
  stream.on('error', () => {});
  return stream;
}

/**
 * A stream without a buffer of its own: each chunk is taken from the channel when somebody asks, so a gap is told in its place.
 * `gone` is told when the consumer drops the stream before its end.
 */
export function readableOf(channel: InChannel, gone?: () => void): Readable {
  const stream = new Readable({
    highWaterMark: 0,
    read: () => channel.pull(),
    destroy(error, done) {
      channel.discard();
      if (!stream.readableEnded) gone?.();
      done(error);
    },
  });
  channel.attach(stream);
  return unfussy(stream);
}

/** `eofWhenDropped`: a writer that is destroyed amid its stream closes it; otherwise the request has to be reset. */
export function writableOf(channel: OutChannel, eofWhenDropped: boolean): Writable {
  return unfussy(
    new Writable({
      ...writeMethods(channel),
      destroy(error, done) {
        channel.drop(eofWhenDropped);
        done(error);
      },
    }),
  );
}

/** Both directions as one stream, each with an end of its own. */
export function duplexOf(input: InChannel, output: OutChannel, gone: () => void): Duplex {
  const stream = new Duplex({
    readableHighWaterMark: 0,
    ...writeMethods(output),
    read: () => input.pull(),
    destroy(error, done) {
      input.discard();
      output.drop(false);
      gone();
      done(error);
    },
  });
  input.attach(stream);
  return unfussy(stream);
}

function writeMethods(channel: OutChannel) {
  return {
    decodeStrings: true,
    write: (chunk: Buffer, _: BufferEncoding, done: (error?: Error | null) => void) =>
      channel.write(chunk, done),
    writev: (chunks: { chunk: Buffer }[], done: (error?: Error | null) => void) =>
      channel.write(chunks.length === 1 ? chunks[0]!.chunk : Buffer.concat(chunks.map((c) => c.chunk)), done),
    final: (done: (error?: Error | null) => void) => channel.end(done),
  };
}
