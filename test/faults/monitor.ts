/**
 * Stands between a shim and the monitor by which it pauses its VMM, under the monitor's name in the run directory: sees every step of a pause, and
 * may do something at one of them before it goes on.
 */
import { chmodSync, renameSync } from 'node:fs';
import { createConnection, createServer, type Socket } from 'node:net';
import { join } from 'node:path';

const MONITOR = 'qmp-shim.sock';
const BEHIND = 'behind.sock';

/** `connect`, or a command of QMP: `before` QEMU has it, `after` QEMU has answered. What is done there is done before the shim hears of it. */
export type Step = `${'before' | 'after'} ${string}`;

export class Between implements AsyncDisposable {
  /** What is done at a step. It is called for each. */
  onStep: (step: Step) => void = () => {};
  readonly #server = createServer((shim) => this.#serve(shim));
  readonly #sockets = new Set<Socket>();
  readonly #behind: string;

  private constructor(dir: string) {
    this.#behind = join(dir, BEHIND);
  }

  /** @param dir the run directory of a sandbox */
  static async in(dir: string): Promise<Between> {
    const between = new Between(dir);
    const front = join(dir, MONITOR);
    renameSync(front, between.#behind);
    await new Promise<void>((resolve, reject) => {
      between.#server.once('error', reject).listen(front, resolve);
    });
    chmodSync(front, 0o600);
    return between;
  }

  #serve(shim: Socket): void {
    const monitor = createConnection(this.#behind);
    let asked = 'connect';
    let command = '';
    for (const [from, to] of [
      [shim, monitor],
      [monitor, shim],
    ] as const) {
      this.#sockets.add(from);
      from.setEncoding('utf8').on('error', () => {});
      // The monitor takes one connection at a time: the next shim must find it free.
      from.on('close', () => {
        this.#sockets.delete(from);
        to.destroy();
      });
    }
    shim.on('data', (text: string) => {
      command += text;
      const name = nameOf(command);
      if (name === undefined) return;
      asked = name;
      this.onStep(`before ${name}`);
      monitor.write(command);
      command = '';
    });
    let answers = '';
    monitor.on('data', (text: string) => {
      const lines = (answers + text).split('\n');
      answers = lines.pop() ?? '';
      for (const line of lines) {
        // Events come in between.
        if (!line.includes('"event":')) this.onStep(`after ${asked}`);
        shim.write(`${line}\n`);
      }
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** The command in a text, once it is whole. */
function nameOf(text: string): string | undefined {
  try {
    return (JSON.parse(text) as { execute: string }).execute;
  } catch {
    return undefined;
  }
}
