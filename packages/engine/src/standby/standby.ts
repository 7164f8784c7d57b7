import { messageOf } from '../errors.js';
import type { Start } from '../fork/child.js';
import {
  type ChildHost,
  type ChildSource,
  shapeKey,
  startWaiting,
  type WaitingVmm,
} from '../fork/waiting.js';
import { availableMemory } from '../host/memory.js';
import { spareFiles } from '../host/open-files.js';
import type { LogFunction, StandbyOptions, StandbyReport } from '../types.js';
import { Pool } from './pool.js';
import { type PrimedChild, primeChild } from './primed.js';

const GiB = 1024 ** 3;

/** Pools kept of each kind; the one that was used least lately makes room. */
const MOST_POOLS = 3;

/** No pool is filled while less memory than this is available, bytes. */
const LEAST_MEMORY = 1.5 * GiB;

/** Nor while the daemon may open fewer files than this: they are left to forks. */
const LEAST_FILES = 64;

/** How long one may wait for its claim, ms; an older one has stale caches and ties memory down for nothing. */
const EXPIRY_MS = 15 * 60_000;

/** After a fork, pools are filled once nothing has been forked for this long, ms: a burst comes first, and what a new child is asked first. */
const IDLE_MS = 60;

type Kind = 'process' | 'primed';

/**
 * VMMs and children made ahead of demand: `process`, keyed by machine shape, and `primed`, keyed by snapshot. Filled in idle
 * time, bounded by memory, dropped when unused.
 */
export class Standby implements AsyncDisposable {
  readonly #options: StandbyOptions;
  readonly #log: LogFunction;
  readonly #process = new Map<string, Pool<WaitingVmm>>();
  readonly #primed = new Map<string, Pool<PrimedChild>>();
  readonly #counts = { process: { hits: 0, misses: 0 }, primed: { hits: 0, misses: 0 } };
  readonly #expiry: NodeJS.Timeout;
  #busy = 0;
  #idle: NodeJS.Timeout | undefined;
  #filling: Promise<void> | undefined;
  #closed = false;

  constructor(options: StandbyOptions, log: LogFunction) {
    this.#options = options;
    this.#log = log;
    this.#expiry = setInterval(() => void this.#expire(), EXPIRY_MS / 5).unref();
  }

  /** What there is for one child of `source`, best first; it is the caller's from now on. */
  async claim(source: ChildSource, host: ChildHost): Promise<Start> {
    if (primes(source) && this.#options.primed > 0) {
      const child = await alive(this.#primedPool(source, host), (item) => item.waiting.alive());
      this.#count('primed', child !== undefined);
      if (child) return { kind: 'primed', child };
    }
    if (this.#options.process > 0) {
      const waiting = await alive(this.#processPool(source, host), (item) => item.alive());
      this.#count('process', waiting !== undefined);
      if (waiting) return { kind: 'process', waiting };
    }
    return { kind: 'none' };
  }

  /** Marks a fork as going on, for as long as the answer is not disposed of: pools are not filled meanwhile. */
  busy(): Disposable {
    this.#busy++;
    clearTimeout(this.#idle);
    return {
      [Symbol.dispose]: () => {
        this.#busy--;
        this.#fillWhenIdle();
      },
    };
  }

  /** Makes a snapshot known that is likely to be forked: its pools are filled when there is time. */
  expect(source: ChildSource, host: ChildHost): void {
    if (this.#options.process > 0) this.#processPool(source, host);
    if (primes(source) && this.#options.primed > 0) this.#primedPool(source, host);
    this.#fillWhenIdle();
  }

  /** A snapshot goes away: so does what was made of it. */
  async drop(snapshotId: string): Promise<void> {
    const pool = this.#primed.get(snapshotId);
    this.#primed.delete(snapshotId);
    await pool?.close();
  }

  report(): StandbyReport {
    const ready = (pools: Map<string, { ready: number }>): number =>
      [...pools.values()].reduce((sum, pool) => sum + pool.ready, 0);
    return {
      process: { ready: ready(this.#process), ...this.#counts.process },
      primed: { ready: ready(this.#primed), ...this.#counts.primed },
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#idle);
    clearInterval(this.#expiry);
    await Promise.all([...this.#process.values(), ...this.#primed.values()].map((pool) => pool.close()));
    await this.#filling;
  }

  #count(kind: Kind, hit: boolean): void {
    this.#counts[kind][hit ? 'hits' : 'misses']++;
  }

  #processPool(source: ChildSource, host: ChildHost): Pool<WaitingVmm> {
    const make = (signal: AbortSignal): Promise<WaitingVmm> => startWaiting(source, host, signal);
    return this.#pool(this.#process, shapeKey(source, host), make);
  }

  #primedPool(source: ChildSource, host: ChildHost): Pool<PrimedChild> {
    const make = (signal: AbortSignal): Promise<PrimedChild> => primeChild(source, host, signal);
    return this.#pool(this.#primed, source.manifest.id, make);
  }

  #pool<T extends AsyncDisposable>(
    pools: Map<string, Pool<T>>,
    key: string,
    make: (s: AbortSignal) => Promise<T>,
  ): Pool<T> {
    const known = pools.get(key);
    if (known) return known;
    if (pools.size >= MOST_POOLS) {
      const [oldest, pool] = [...pools].reduce((a, b) => (a[1].lastUse <= b[1].lastUse ? a : b));
      pools.delete(oldest);
      void pool.close();
    }
    const pool = new Pool(make);
    pools.set(key, pool);
    return pool;
  }

  #fillWhenIdle(): void {
    if (this.#closed || this.#busy > 0) return;
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => {
      this.#filling ??= this.#fill().finally(() => {
        this.#filling = undefined;
      });
    }, IDLE_MS).unref();
  }

  /** Fills pools one thing at a time; stops as soon as somebody forks. */
  async #fill(): Promise<void> {
    for (;;) {
      const pool = this.#wanting();
      if (!pool || this.#closed || this.#busy > 0) return;
      try {
        if ((await availableMemory()) < LEAST_MEMORY || (await spareFiles()).spare < LEAST_FILES) return;
        await pool.fill();
      } catch (error) {
        if (!this.#closed) this.#log('warn', `a standby could not be made: ${messageOf(error)}`);
        return;
      }
    }
  }

  /** The pool that lacks something: primed ones first, those that were used lately first. */
  #wanting(): Pool<PrimedChild> | Pool<WaitingVmm> | undefined {
    const lately = <P extends { lastUse: number }>(pools: Map<string, P>): P[] =>
      [...pools.values()].sort((a, b) => b.lastUse - a.lastUse);
    return (
      lately(this.#primed).find((pool) => pool.ready < this.#options.primed) ??
      lately(this.#process).find((pool) => pool.ready < this.#options.process)
    );
  }

  async #expire(): Promise<void> {
    for (const pool of [...this.#process.values(), ...this.#primed.values()]) await pool.expire(EXPIRY_MS);
  }
}

function primes(source: ChildSource): boolean {
  return source.manifest.template.prime.length > 0;
}

/** The first of a pool whose VMM still runs; dead ones are cleared away. */
async function alive<T extends AsyncDisposable>(
  pool: Pool<T>,
  check: (item: T) => Promise<boolean>,
): Promise<T | undefined> {
  for (let item = pool.take(); item; item = pool.take()) {
    if (await check(item)) return item;
    await item[Symbol.asyncDispose]();
  }
  return undefined;
}
