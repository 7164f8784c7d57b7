import { StringDecoder } from 'node:string_decoder';

/** Lines of a byte stream, each at most `limit()` characters; one that is longer is told, and dropped. */
export class LineReader {
  readonly #decoder = new StringDecoder('utf8');
  readonly #limit: () => number;
  readonly #line: (line: string) => void;
  readonly #tooLong: () => void;
  #parts: string[] = [];
  #size = 0;
  #dropping = false;

  constructor(limit: () => number, line: (line: string) => void, tooLong: () => void) {
    this.#limit = limit;
    this.#line = line;
    this.#tooLong = tooLong;
  }

  push(chunk: Buffer): void {
    const text = this.#decoder.write(chunk);
    let at = 0;
    for (;;) {
      const end = text.indexOf('\n', at);
      this.#add(text.slice(at, end < 0 ? undefined : end));
      if (end < 0) return;
      at = end + 1;
      const line = this.#parts.join('');
      const whole = !this.#dropping;
      this.#parts = [];
      this.#size = 0;
      this.#dropping = false;
      if (whole && line !== '') this.#line(line);
    }
  }

  #add(part: string): void {
    if (this.#dropping || part === '') return;
    this.#parts.push(part);
    this.#size += part.length;
    if (this.#size <= this.#limit()) return;
    this.#parts = [];
    this.#dropping = true;
    this.#tooLong();
  }
}
