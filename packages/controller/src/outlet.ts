/** Output of a command on its way to a client, bounded by the client's credit. */
import type { Readable } from 'node:stream';
import { initialCredit, maxFrameBytes } from '@forkd/api';

/** One stream of output, sent as far as there is credit. */
export class Outlet {
  /** Resolves when the last byte has been sent. */
  readonly empty: Promise<void>;
  readonly #stream: Readable;
  readonly #send: (bytes: Buffer) => void;
  #credit = initialCredit;
  #rest: Buffer = Buffer.alloc(0);
  #ended = false;
  #onEmpty: () => void = () => undefined;

  constructor(stream: Readable, send: (bytes: Buffer) => void) {
    this.#stream = stream;
    this.#send = send;
    this.empty = new Promise((resolve) => {
      this.#onEmpty = resolve;
    });
    const end = () => {
      this.#ended = true;
      this.#pump();
    };
    stream.on('data', (chunk: Buffer) => {
      this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
      this.#pump();
    });
    stream.on('end', end).on('error', end).on('close', end);
  }

  grant(bytes: number): void {
    this.#credit += bytes;
    this.#pump();
  }

  #pump(): void {
    while (this.#rest.length > 0 && this.#credit > 0) {
      const part = this.#rest.subarray(0, Math.min(this.#credit, maxFrameBytes));
      this.#rest = this.#rest.subarray(part.length);
      this.#credit -= part.length;
      this.#send(part);
    }
    if (this.#rest.length > 0) this.#stream.pause();
    else if (this.#ended) this.#onEmpty();
    else this.#stream.resume();
  }
}
