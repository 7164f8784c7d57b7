/** Exploring: several continuations of one state, side by side, of which the best is kept. */
import { isSandboxId, maxBranchChildren } from '@forkd/api';
import { clientError } from './errors.js';
import { exploreChild, notStarted } from './explore-child.js';
import type { ExploreClient, ExploreInput, ExploreOptions, ExploreResult } from './explore-types.js';
import type { ForkOutcome } from './fork.js';
import type { Sandbox } from './sandbox.js';

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
    const problem = whyNot(n, each?.length);
    if (problem !== null) throw clientError('invalid_argument', { field: 'explore', problem });
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
          child
            ? exploreChild({ index, sandbox: child, input }, this.#options, this.#enough.signal)
            : Promise.resolve(notStarted(index, failure)),
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
  async #fork(): Promise<ForkOutcome> {
    const { from, signal } = this.#options;
    signal?.throwIfAborted();
    if (isSandboxId(from)) {
      // Not cut short: until it is answered nobody knows its id, and nobody could remove it.
      this.#snapshot = (await this.#client.sandbox(from).branch()).id;
      signal?.throwIfAborted();
    }
    const outcome = await this.#client.fork({
      snapshot: this.#snapshot ?? from,
      n: this.#inputs.length,
      ...(signal && { signal }),
    });
    this.#snapshot ??= outcome.sandboxes[0]?.lastInfo?.snapshot_id;
    return outcome;
  }

  /** A branch that was made for this and that nothing continues from is of no more use. */
  async #dropBranch(): Promise<void> {
    if (!isSandboxId(this.#options.from) || this.#snapshot === undefined || this.kept.length > 0) return;
    await this.#client.snapshots.remove(this.#snapshot).catch(() => undefined);
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

/** Why there cannot be so many children. @param entries of `each` */
function whyNot(n: number, entries: number | undefined): string | null {
  if (entries !== undefined && entries !== n)
    return `n is ${n}, and each has ${entries} ${entries === 1 ? 'entry' : 'entries'}`;
  return Number.isInteger(n) && n >= 1 && n <= maxBranchChildren
    ? null
    : `n is ${n}, and 1 to ${maxBranchChildren} children can be`;
}
