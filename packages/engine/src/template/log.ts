/** The log of one build: kept under builds/NAME, whatever becomes of the build. */
import { createWriteStream, type WriteStream } from 'node:fs';
import { mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { finished } from 'node:stream/promises';

/** Logs kept of a template. */
const KEPT = 20;
/** A build that prints without end fills no disk. */
const MAX_BYTES = 256 * 1024 * 1024;

export class BuildLog implements AsyncDisposable {
  readonly path: string;
  readonly #stream: WriteStream;
  #bytes = 0;

  private constructor(path: string) {
    this.path = path;
    this.#stream = createWriteStream(path, { flags: 'wx', mode: 0o600 });
    // A log that cannot be written (disk full) must not end the build; that will fail by itself, with its own reason.
    this.#stream.on('error', () => {});
  }

  /** Opens a new log; the oldest ones of the template go. */
  static async open(home: string, name: string): Promise<BuildLog> {
    const dir = join(home, 'builds', name);
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const old = (await readdir(dir)).filter((file) => file.endsWith('.log')).sort();
    for (const file of old.slice(0, Math.max(0, old.length - KEPT + 1)))
      await rm(join(dir, file), { force: true });
    const stamp = new Date().toISOString().replace(/[:.]/g, '-');
    const same = old.filter((file) => file.startsWith(stamp)).length;
    return new BuildLog(join(dir, `${stamp}${same > 0 ? `.${same}` : ''}.log`));
  }

  write(text: string): void {
    if (this.#bytes >= MAX_BYTES) return;
    this.#bytes += Buffer.byteLength(text);
    this.#stream.write(this.#bytes >= MAX_BYTES ? '\n[forkd: the rest is left out]\n' : text);
  }

  line(text: string): void {
    this.write(`${text}\n`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stream.end();
    await finished(this.#stream).catch(() => {});
  }
}
