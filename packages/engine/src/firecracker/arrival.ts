import { type FSWatcher, watch } from 'node:fs';
import { access } from 'node:fs/promises';
import type net from 'node:net';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { orAborted } from '../deadline.js';
import { connectUnix } from '../unix-socket.js';

/** Between the name of a socket and its readiness for connections lies one system call: no event tells of it. */
const LISTEN_STEP_MS = 1;

/** A file that somebody else is about to make. Watch before that begins. */
export class Arrival implements Disposable {
  readonly #watcher: FSWatcher;
  readonly #seen: Promise<void>;
  readonly #path: string;

  /** @param dir a directory that exists */
  constructor(dir: string, name: string) {
    this.#path = join(dir, name);
    this.#watcher = watch(dir);
    this.#seen = new Promise((resolve, reject) => {
      this.#watcher.on('change', (_event, filename) => {
        if (filename === name) resolve();
      });
      this.#watcher.on('error', reject);
    });
    this.#seen.catch(() => {});
  }

  /** Resolves when it is there. */
  async here(signal: AbortSignal): Promise<void> {
    const there = await access(this.#path).then(
      () => true,
      () => false,
    );
    if (!there) await orAborted(this.#seen, signal);
  }

  /** Waits for it, and until it takes a connection, which is closed again. */
  async accepts(signal: AbortSignal): Promise<void> {
    await this.here(signal);
    for (;;) {
      try {
        close(await connectUnix(this.#path, signal));
        return;
      } catch (error) {
        const { cause } = error as { cause?: NodeJS.ErrnoException };
        if (cause?.code !== 'ECONNREFUSED') throw error;
        await setTimeout(LISTEN_STEP_MS, undefined, { signal });
      }
    }
  }

  [Symbol.dispose](): void {
    this.#watcher.close();
  }
}

function close(socket: net.Socket): void {
  socket.destroy();
}
