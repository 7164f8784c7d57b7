import { bytes } from '../format.js';

/** Counts what a copy did. */
export class Tally {
  #files = 0;
  #bytes = 0;
  readonly #skipped: { path: string; reason: string }[] = [];

  /** One more file, link or stream. */
  add(size: number): void {
    this.#files += 1;
    this.#bytes += size;
  }

  /** Something that cannot be copied. */
  skip(path: string, reason: string): void {
    this.#skipped.push({ path, reason });
  }

  get skipped(): readonly { path: string; reason: string }[] {
    return this.#skipped;
  }

  toJSON() {
    return { files: this.#files, bytes: this.#bytes, skipped: this.#skipped };
  }

  toString(): string {
    return `${this.#files} ${this.#files === 1 ? 'file' : 'files'}, ${bytes(this.#bytes)}`;
  }
}
