/** Output of several commands side by side: whole lines, each with the number of its command. */
import type { Writable } from 'node:stream';

/** Longest line that waits for its end, bytes; longer ones are cut into several. */
const LONGEST = 8192;

type Channel = 'stdout' | 'stderr';

export class Prefixer {
  readonly #width: number;
  readonly #streams: Record<Channel, Writable>;
  readonly #rest = new Map<string, Buffer>();

  /** @param count number of commands; they are numbered from 0 */
  constructor(count: number, stdout: Writable, stderr: Writable) {
    this.#width = String(count - 1).length;
    this.#streams = { stdout, stderr };
  }

  write(index: number, channel: Channel, chunk: Buffer): void {
    const key = `${index} ${channel}`;
    let rest = Buffer.concat([this.#rest.get(key) ?? Buffer.alloc(0), chunk]);
    for (;;) {
      const newline = rest.indexOf(10);
      const end = newline >= 0 && newline <= LONGEST ? newline : rest.length > LONGEST ? LONGEST : -1;
      if (end < 0) break;
      this.#line(index, channel, rest.subarray(0, end));
      rest = rest.subarray(end === newline ? end + 1 : end);
    }
    this.#rest.set(key, rest);
  }

  /** A command has ended: what it left without line end is a line too. */
  end(index: number): void {
    for (const channel of ['stdout', 'stderr'] as const) {
      const rest = this.#rest.get(`${index} ${channel}`);
      if (rest !== undefined && rest.length > 0) this.#line(index, channel, rest);
      this.#rest.delete(`${index} ${channel}`);
    }
  }

  #line(index: number, channel: Channel, line: Buffer): void {
    const prefix = Buffer.from(`${String(index).padStart(this.#width)} | `);
    this.#streams[channel].write(Buffer.concat([prefix, line, Buffer.from('\n')]));
  }
}
