/** Exploring: several continuations of one state, side by side, of which the best is kept. */
import type { Readable } from 'node:stream';
import type { Command } from './command.js';
import { ForkdError } from './errors.js';
import type { ExecExit } from './exec-stream.js';
import type { ForkOptions, ForkOutcome } from './fork.js';
import type { Sandbox } from './sandbox.js';
import type { Snapshots } from './snapshots.js';

/** What an exploration needs of its client. */
export interface ExploreClient {
  readonly snapshots: Snapshots;
  sandbox(id: string): Sandbox;
  fork(options: ForkOptions): Promise<ForkOutcome>;
}

/** What one child gets. */
export interface ExploreInput {
  /** Added to the environment of the command. */
  env?: Record<string, string>;
  /** Given to the command, then EOF. Default: /dev/null. */
  stdin?: string | Uint8Array;
}

/** `best`: the child with the highest score, without `score` the first that succeeded. `ok`: all that succeeded. */
export const exploreKeeps = ['best', 'ok', 'none'] as const;
export type ExploreKeep = (typeof exploreKeeps)[number];

export interface ExploreOptions {
  /** A sandbox, which is branched first, or the tag or id of a snapshot. */
  from: string;
  /** Number of children. Default: as many as `each` has. */
  n?: number | undefined;
  /** What each child gets: one entry a child. */
  each?: readonly ExploreInput[] | undefined;
  command: Command;
  cwd?: string | undefined;
  user?: string | undefined;
  /** Seconds until a command and all it started are killed. Default: none. */
  timeoutSecs?: number | undefined;
  /** Run in each child whose command exited 0; the number on its last line of output is the child's score. */
  score?: Command | undefined;
  /** Cancel the others as soon as one has exited 0. Default false. */
  firstSuccess?: boolean | undefined;
  /** Which children live on. Default `none`. */
  keep?: ExploreKeep | undefined;
  /** Called with output as it comes. */
  onOutput?: ((index: number, stream: 'stdout' | 'stderr', bytes: Buffer) => void) | undefined;
  /** Cancels all: children are removed, and the results end with an error. */
  signal?: AbortSignal | undefined;
}

/** How one child ended. */
export interface ExploreResult {
  /** Which child, from 0. */
  index: number;
  /** Undefined when it could not be started. */
  sandbox: Sandbox | undefined;
  /** `ok`: exited 0. `failed`: ended otherwise. `cancelled`: another one succeeded first. `error`: could not be run; see `error`. */
  state: 'ok' | 'failed' | 'cancelled' | 'error';
  exit: ExecExit | undefined;
  exitCode: number | undefined;
  /** From the start of the command. */
  durationMs: number;
  /** Memory of the host that the child alone used at the end. */
  memoryBytes: number | undefined;
  /** Null when its score command printed no number. */
  score: number | null | undefined;
  error: ForkdError | undefined;
}

/** An exploration that runs: iterate over it for results in the order in which children end. It can be iterated once. */
export class Exploration implements AsyncIterable<ExploreResult> {
  /** Results so far, by index. */
  readonly results: ExploreResult[] = [];
  /** Children that live on; complete when the iteration has ended. */
  readonly kept: Sandbox[] = [];
  readonly #client: ExploreClient;
  readonly #options: ExploreOptions;
  readonly #inputs: readonly ExploreInput[];
  /** Aborted when the others are not needed any more. */
  readonly #enough = new AbortController();
  #snapshot: string | undefined;

  /** @internal Use `client.explore`. */
  constructor(client: ExploreClient, options: ExploreOptions) {
    const { each, n = each?.length ?? 0 } = options;
    if (!Number.isInteger(n) || n < 1 || (each !== undefined && each.length !== n))
      throw new RangeError(`explore: ${n} children${each ? ` of ${each.length} entries in "each"` : ''}`);
    this.#client = client;
    this.#options = options;
    this.#inputs = each ?? Array.from({ length: n }, () => ({}));
  }

  /** The snapshot that all continue from; undefined until they were forked. */
  get snapshot(): string | undefined {
    return this.#snapshot;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ExploreResult, void, undefined> {
    const { signal } = this.#options;
    const children: Sandbox[] = [];
    try {
      const { sandboxes, failures } = await this.#fork();
      children.push(...sandboxes);
      const failed = new Map(failures.map(({ index, error }) => [index, error]));
      const running = new Map<number, Promise<ExploreResult>>();
      const rest = [...sandboxes];
      this.#inputs.forEach((input, index) => {
        const failure = failed.get(index);
        const child = failure === undefined ? rest.shift() : undefined;
        running.set(
          index,
          child ? this.#run(index, child, input) : Promise.resolve(notStarted(index, failure)),
        );
      });
      while (running.size > 0) {
        const result = await Promise.race(running.values());
        running.delete(result.index);
        signal?.throwIfAborted();
        this.results[result.index] = result;
        if (result.state === 'ok' && this.#options.firstSuccess) this.#enough.abort();
        yield result;
      }
      this.kept.push(...this.#choose());
    } finally {
      // Also when the caller stops early: then nothing was chosen, and nothing is kept.
      this.#enough.abort();
      await Promise.allSettled(
        children.filter((child) => !this.kept.includes(child)).map((child) => child.kill()),
      );
      await this.#dropBranch();
    }
  }

  /** Branches where that is needed, and forks. */
  async #fork() {
    const { from, signal } = this.#options;
    const n = this.#inputs.length;
    if (from.startsWith('sb-')) {
      const outcome = await this.#client.sandbox(from).fork(n, { signal });
      this.#snapshot = outcome.snapshot.id;
      return outcome;
    }
    const outcome = await this.#client.fork({ snapshot: from, n, ...(signal && { signal }) });
    this.#snapshot = outcome.sandboxes[0]?.lastInfo?.snapshot_id;
    return outcome;
  }

  /** A branch that was made for this and that nothing continues from is of no more use. */
  async #dropBranch(): Promise<void> {
    if (!this.#options.from.startsWith('sb-') || this.#snapshot === undefined || this.kept.length > 0) return;
    await this.#client.snapshots.remove(this.#snapshot).catch(() => undefined);
  }

  async #run(index: number, sandbox: Sandbox, input: ExploreInput): Promise<ExploreResult> {
    const { command, cwd, user, timeoutSecs, onOutput, signal } = this.#options;
    const enough = this.#enough.signal;
    const stop = signal ? AbortSignal.any([signal, enough]) : enough;
    const began = performance.now();
    const base = { index, sandbox, exit: undefined, exitCode: undefined, score: undefined, error: undefined };
    try {
      const { stdin, env } = input;
      const process = await sandbox.run(command, {
        cwd,
        user,
        timeoutSecs,
        env,
        stdin: stdin !== undefined,
        signal: stop,
      });
      process.stdin?.end(stdin);
      follow(process.stdout, (bytes) => onOutput?.(index, 'stdout', bytes));
      follow(process.stderr, (bytes) => onOutput?.(index, 'stderr', bytes));
      const exit = await process.wait();
      await Promise.all([drained(process.stdout), drained(process.stderr)]);
      const durationMs = performance.now() - began;
      const [memoryBytes, score] = await Promise.all([
        sandbox.info(stop).then(
          (info) => info.memory_bytes,
          () => undefined,
        ),
        exit.exitCode === 0 ? this.#score(sandbox, stop) : undefined,
      ]);
      const state = exit.exitCode === 0 ? 'ok' : 'failed';
      return { ...base, state, exit, exitCode: exit.exitCode, durationMs, memoryBytes, score };
    } catch (error) {
      const durationMs = performance.now() - began;
      const state = enough.aborted ? 'cancelled' : 'error';
      const known = error instanceof ForkdError ? error : undefined;
      if (known === undefined && !stop.aborted) throw error;
      return {
        ...base,
        state,
        durationMs,
        memoryBytes: undefined,
        error: state === 'error' ? known : undefined,
      };
    }
  }

  async #score(sandbox: Sandbox, signal: AbortSignal): Promise<number | null | undefined> {
    const { score, cwd, user } = this.#options;
    if (score === undefined) return undefined;
    const { stdout, exit_code } = await sandbox.exec(score, { cwd, user, signal });
    const last = stdout.trim().split('\n').at(-1)?.trim() ?? '';
    const value = Number(last);
    return exit_code === 0 && last !== '' && Number.isFinite(value) ? value : null;
  }

  #choose(): Sandbox[] {
    const { keep = 'none', score } = this.#options;
    const good = this.#inTime.filter((result) => result.state === 'ok');
    const boxes = (some: readonly ExploreResult[]) =>
      some.flatMap(({ sandbox }) => (sandbox ? [sandbox] : []));
    if (keep === 'none') return [];
    if (keep === 'ok') return boxes(good);
    if (score === undefined) return boxes(good.slice(0, 1));
    const scored = good.filter(({ score: value }) => typeof value === 'number');
    scored.sort((a, b) => (b.score ?? 0) - (a.score ?? 0));
    return boxes(scored.slice(0, 1));
  }

  /** Results in the order in which children ended. */
  get #inTime(): ExploreResult[] {
    return this.results.filter(Boolean).sort((a, b) => a.durationMs - b.durationMs);
  }
}

function notStarted(
  index: number,
  failure: { error: string; code: string; remedy: string } | undefined,
): ExploreResult {
  const error = new ForkdError({
    code: failure?.code ?? 'fork_failed',
    message: failure?.error ?? 'it could not be started',
    remedy: failure?.remedy ?? 'See "forkd doctor".',
    status: 500,
    kind: 'failed',
  });
  return {
    index,
    sandbox: undefined,
    state: 'error',
    exit: undefined,
    exitCode: undefined,
    durationMs: 0,
    memoryBytes: undefined,
    score: undefined,
    error,
  };
}

function follow(stream: Readable | null, take: (bytes: Buffer) => void): void {
  stream?.on('data', take);
}

/** Resolves when the last byte has been taken. */
function drained(stream: Readable | null): Promise<void> {
  if (stream === null || stream.readableEnded || stream.destroyed) return Promise.resolve();
  return new Promise((resolve) => {
    stream.once('end', resolve).once('close', resolve);
  });
}
