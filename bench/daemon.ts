import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Forkd } from '@forkd/sdk';

const MAIN = fileURLToPath(new URL('../packages/controller/bin/daemon.mjs', import.meta.url));

/** How long the daemon may take until it accepts, ms. */
const START_MS = 60_000;

/** A daemon of the bench's own, and a client of it. */
export class BenchDaemon implements AsyncDisposable {
  readonly client: Forkd;
  readonly home: string;
  readonly #process: ChildProcess;

  private constructor(home: string, process: ChildProcess) {
    this.home = home;
    this.#process = process;
    this.client = new Forkd({ home });
  }

  /** Starts a daemon on a state directory, with so many standbys of each kind, and waits until it accepts. */
  static async start(home: string, standby: { process: number; primed: number }): Promise<BenchDaemon> {
    const child = spawn(
      process.execPath,
      [
        MAIN,
        'serve',
        ...['--standby-process', String(standby.process), '--standby-primed', String(standby.primed)],
        ...['--bind', '127.0.0.1:0'],
      ],
      {
        env: { ...process.env, FORKD_HOME: home, FORKD_READY_FD: '3' },
        stdio: ['ignore', 'ignore', 'inherit', 'pipe'],
      },
    );
    const pipe = child.stdio[3] as NodeJS.ReadableStream;
    const signal = AbortSignal.timeout(START_MS);
    const [line] = (await Promise.race([
      once(pipe, 'data', { signal }),
      once(child, 'exit', { signal }),
    ])) as [unknown];
    const text = String(line);
    if (!text.includes('"ready"')) throw new Error(`the daemon did not start: ${text}`);
    return new BenchDaemon(home, child);
  }

  /** Removes every sandbox. */
  async clear(): Promise<void> {
    for (const { id } of await this.client.sandboxes.list()) await this.client.sandboxes.remove(id);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.clear();
    await this.client.close();
    this.#process.kill('SIGTERM');
    if (this.#process.exitCode === null && this.#process.signalCode === null)
      await once(this.#process, 'exit');
  }
}
