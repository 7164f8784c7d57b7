import type { Socket } from 'node:net';
import { getSystemErrorName } from 'node:util';
import { SHIM_REPLY, shimFrames } from '@forkd/wire';
import { deadline, orAborted } from '../deadline.js';
import { EngineError } from '../errors.js';
import { encodeFrame, type Frame, FrameReader, PayloadReader } from './frames.js';
import { decodeExit } from './protocol.js';
import type { VmmExit } from './types.js';

/** A refusal by the shim; `errno` is its kind, like `ENOENT`. */
export class ShimRefusal extends Error {
  readonly errno: string;
  constructor(status: number, message: string) {
    super(message);
    this.name = 'ShimRefusal';
    this.errno = errnoName(status);
  }
}

function errnoName(status: number): string {
  try {
    return getSystemErrorName(-status);
  } catch {
    return `errno ${status}`;
  }
}

interface Waiting {
  resolve(payload: Buffer): void;
  reject(error: unknown): void;
}

/** One connection to a shim: requests and their answers, in order, and the one event. */
export class ShimConnection {
  /** Resolves when the connection is over, for whatever reason. */
  readonly closed: Promise<void>;
  /** Resolves if the shim tells over this connection how the VMM ended. */
  readonly exit: Promise<VmmExit>;
  readonly #socket: Socket;
  readonly #waiting = new Map<number, Waiting>();
  #nextId = 1;
  #over = false;

  constructor(socket: Socket) {
    this.#socket = socket;
    let tellExit: (exit: VmmExit) => void;
    this.exit = new Promise((resolve) => {
      tellExit = resolve;
    });
    const frames = new FrameReader();
    socket.on('data', (chunk: Buffer) => {
      try {
        for (const frame of frames.push(chunk)) {
          if (frame.type === shimFrames.EXITED) tellExit(decodeExit(frame.payload));
          else this.#answer(frame);
        }
      } catch (error) {
        this.#fail(error);
        socket.destroy();
      }
    });
    socket.on('error', () => {}); // 'close' follows
    this.closed = new Promise((resolve) => {
      socket.once('close', () => {
        this.#over = true;
        this.#fail(new EngineError('vmm_failed', 'the connection to the shim has closed'));
        resolve();
      });
    });
  }

  /**
   * Sends a request and waits for its answer.
   *
   * @param what for messages, like "graft"
   * @throws ShimRefusal; EngineError timeout, vmm_failed when the connection closes
   */
  async request(
    type: number,
    payload: Buffer,
    what: string,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<Buffer> {
    if (this.#over) throw new EngineError('vmm_failed', `${what}: the connection to the shim has closed`);
    const id = this.#nextId++;
    const answer = new Promise<Buffer>((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    answer.catch(() => {});
    this.#socket.write(encodeFrame(type, id, payload));
    using limit = deadline(`${what} by the shim`, timeoutMs, signal);
    return await orAborted(answer, limit.signal);
  }

  close(): void {
    this.#socket.destroy();
  }

  #answer(frame: Frame): void {
    const waiting = this.#waiting.get(frame.id);
    if (!waiting || (frame.type & SHIM_REPLY) === 0) return;
    this.#waiting.delete(frame.id);
    if (frame.status === 0) waiting.resolve(frame.payload);
    else waiting.reject(new ShimRefusal(frame.status, new PayloadReader(frame.payload).text()));
  }

  #fail(error: unknown): void {
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
  }
}
