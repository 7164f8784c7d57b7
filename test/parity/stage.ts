/** A daemon of the suite's own, on a state directory of its own, with the engine and accelerator under test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Forkd, ForkdError, type Sandbox } from '@forkd/sdk';
import { type Library, openLibrary } from '../support/library.js';
import type { Children, Stage } from './types.js';

/** Under two emulations a daemon takes most of a minute to start. */
const START_MS = 300_000;
/** What an ordinary host takes for a first program of its own, ms: the measure of slowness. */
const ORDINARY_START_MS = 60;

/** What a kernel says at its end: that it panics, or what it does instead of running on. */
const LAST_WORDS = /Kernel panic|reboot: /;

export interface StageOptions {
  /** The checkout whose daemon is run. */
  checkout: string;
  engine: string;
  accelerator: string;
  /** Told as it goes. */
  say?: (text: string) => void;
}

/** Starts the daemon and builds the busybox template. */
export async function openStage(options: StageOptions): Promise<Stage & AsyncDisposable> {
  const home = mkdtempSync(join(tmpdir(), 'fk-'));
  const stage = new LiveStage(home, options);
  try {
    await stage.open();
    return stage;
  } catch (error) {
    const log = join(home, 'daemon.log');
    await stage[Symbol.asyncDispose]();
    if (existsSync(log)) options.say?.(readFileSync(log, 'utf8').slice(-2000));
    throw error;
  }
}

class LiveStage implements Stage {
  readonly client: Forkd;
  readonly home: string;
  readonly engine: string;
  readonly accelerator: string;
  version = 'unknown';
  slowness = 1;
  lostGuests = 0;
  readonly #templates = new Map<string, Promise<string>>();
  readonly #options: StageOptions;
  #daemon: ChildProcess | undefined;

  constructor(home: string, options: StageOptions) {
    this.home = home;
    this.client = new Forkd({ home });
    this.engine = options.engine;
    this.accelerator = options.accelerator;
    this.#options = options;
  }

  async open(): Promise<void> {
    const seed = process.env.FORKD_TEST_SEED;
    if (seed)
      cpSync(join(seed, 'cache'), join(this.home, 'cache'), { recursive: true, preserveTimestamps: true });
    this.slowness = await measureSlowness();
    await this.#start();
    this.#options.say?.(`${this.slowness.toFixed(1)} x slower than an ordinary host`);
    const began = performance.now();
    // A build tells that it goes on; the proof of an accelerator, which comes first, takes minutes where all is emulated.
    await this.#build('busybox');
    const { engine, engine_version, accelerator } = await this.client.snapshots.get('busybox');
    const ms = Math.round(performance.now() - began);
    this.version = engine_version ?? this.version;
    this.#options.say?.(`${engine} ${this.version} on ${accelerator}: template built in ${ms} ms`);
    if (engine !== this.engine || accelerator !== this.accelerator)
      throw new Error(`${this.engine}+${this.accelerator} is asked for, built was ${engine}+${accelerator}`);
  }

  async crash(): Promise<void> {
    await this.#end('SIGKILL');
    await this.#start();
  }

  async library(): Promise<Library> {
    const snapshotId = (await this.client.snapshots.get('busybox')).id;
    await this.#end('SIGTERM');
    const nativeDir = join(this.#options.checkout, 'build/native');
    try {
      const library = await openLibrary({ home: this.home, nativeDir, snapshotId });
      return {
        fork: (snapshot) => library.fork(snapshot),
        [Symbol.asyncDispose]: async () => {
          await library[Symbol.asyncDispose]();
          await this.#start();
        },
      };
    } catch (error) {
      await this.#start();
      throw error;
    }
  }

  async #end(how: NodeJS.Signals): Promise<void> {
    const daemon = this.#daemon;
    if (!daemon) throw new Error('no daemon runs');
    const gone = once(daemon, 'exit');
    daemon.kill(how);
    await gone;
  }

  async fork(n = 1, options: { snapshot?: string; env?: Record<string, string> } = {}): Promise<Children> {
    const { sandboxes, failures } = await this.client.fork({ snapshot: 'busybox', n, ...options });
    const removeAll = async () => {
      await Promise.all(
        sandboxes.map(async (box) => {
          await this.#tellOfEnd(box).catch(unlessGone);
          await box.kill().catch(unlessGone);
        }),
      );
    };
    const box = sandboxes[0];
    if (failures.length > 0 || box === undefined) {
      await removeAll();
      throw new Error(`${failures.length} of ${n} children failed: ${JSON.stringify(failures)}`);
    }
    return { boxes: sandboxes, box, [Symbol.asyncDispose]: removeAll };
  }

  /** A guest that has ended by itself is no part of any behaviour: what its kernel said last goes with its sandbox. */
  async #tellOfEnd(box: Sandbox): Promise<void> {
    const { state, exit } = await box.info();
    if (state !== 'exited' || exit?.kind !== 'exited') return;
    const { console: said, vmm } = await box.logs();
    if (!LAST_WORDS.test(said)) this.lostGuests += 1;
    this.#options.say?.(
      `${box.id} has ended by itself: ${exit.reason}\n${said.slice(-4000)}\n${vmm.slice(-1000)}`,
    );
  }

  async template(tag: string, yaml: string): Promise<string> {
    const built = this.#templates.get(tag) ?? this.#build({ yaml }, tag);
    this.#templates.set(tag, built);
    return await built;
  }

  async #build(template: string | { yaml: string }, tag?: string): Promise<string> {
    for await (const event of this.client.templates.build(template, tag === undefined ? {} : { tag })) {
      if (event.type === 'step' && (event.ms ?? 0) > 1000)
        this.#options.say?.(`build, ${event.title}: ${Math.round(event.ms! / 1000)} s`);
      if (event.type === 'done') return event.snapshot_id;
      if (event.type === 'failed') throw new Error(`${event.error.code}: ${event.error.error}`);
    }
    throw new Error('a build without an end');
  }

  async #start(): Promise<void> {
    const { checkout, engine, accelerator } = this.#options;
    const program = join(checkout, 'packages/controller/bin/daemon.mjs');
    const daemon = spawn(
      process.execPath,
      [...process.execArgv, program, 'serve', '--home', this.home, '--bind', 'none'],
      {
        stdio: ['ignore', 'inherit', 'inherit', 'pipe'],
        env: { ...process.env, FORKD_READY_FD: '3', FORKD_ENGINE: engine, FORKD_ACCELERATOR: accelerator },
      },
    );
    this.#daemon = daemon;
    const ready = daemon.stdio[3];
    if (!ready) throw new Error('no pipe');
    const lines = createInterface({ input: ready as NodeJS.ReadableStream });
    const signal = AbortSignal.timeout(START_MS);
    const [line] = (await Promise.race([
      once(lines, 'line', { signal }),
      once(daemon, 'exit').then(([code]) => [`ended with ${code}`]),
    ])) as [string];
    lines.close();
    if (!line.includes('"ready"')) throw new Error(`the daemon does not start: ${line}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const daemon = this.#daemon;
    if (daemon && daemon.exitCode === null && daemon.signalCode === null) {
      await this.client.sandboxes.list().then(
        (all) => Promise.allSettled(all.map(({ id }) => this.client.sandbox(id).kill())),
        () => undefined,
      );
      await this.#end('SIGTERM');
    }
    await this.client.close();
    rmSync(this.home, { recursive: true, force: true });
  }
}

function unlessGone(error: unknown): void {
  if (!(error instanceof ForkdError && error.code === 'sandbox_not_found')) throw error;
}

/** How long a Node takes that does nothing, against an ordinary host. The best of two: the first reads its file. */
async function measureSlowness(): Promise<number> {
  let best = Number.POSITIVE_INFINITY;
  for (let look = 0; look < 2; look++) {
    const began = performance.now();
    await once(spawn(process.execPath, ['-e', '0'], { stdio: 'ignore' }), 'exit');
    best = Math.min(best, performance.now() - began);
  }
  return Math.max(1, best / ORDINARY_START_MS);
}
