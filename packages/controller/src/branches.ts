/** Branches: captures of running sandboxes into new snapshots. */
import type { BranchReply, BranchRequest, PromoteReply, SnapshotInfo } from '@forkd/api';
import type { Branching, Machine } from '@forkd/engine';
import { messageOf, newId } from '@forkd/engine';
import type { Draft } from './drafts.js';
import { ApiError, toApiError } from './errors.js';
import type { Log } from './log.js';
import type { Sandboxes } from './sandboxes.js';
import type { Snapshots } from './snapshots.js';

export interface BranchesOptions {
  sandboxes: Sandboxes;
  snapshots: Snapshots;
  log: Log;
}

/**
 * Branches that are written at once on this host. While one is, its source pays each write to memory twice, and all of them share one
 * disk: more would make every one slower, and the sources too.
 */
export const maxBranches = 8;

/** Longest time that the removal of a sandbox waits for its branches to be written, ms. */
const settleMs = 60_000;

/** What a branch answers. */
export interface BranchOutcome {
  status: 201 | 202 | 207;
  reply: SnapshotInfo | BranchReply;
}

export class Branches {
  readonly #options: BranchesOptions;
  /** Aborted when a sandbox is removed: those that have not begun do not begin. */
  readonly #stops = new Map<string, AbortController>();

  constructor(options: BranchesOptions) {
    this.#options = options;
  }

  /** Number of branches that are being written. */
  get running(): number {
    return this.#options.snapshots.drafts.writing().length;
  }

  /**
   * Captures a sandbox. Without `wait: false`, until the snapshot is written and can be forked.
   *
   * @param signal The caller went away: a capture that has not begun does not begin. What was captured is kept.
   * @throws ApiError tag_exists, busy (at the most that a host takes), sandbox_not_running; errors of the engine. The source runs on.
   */
  async branch(id: string, request: BranchRequest, signal: AbortSignal): Promise<BranchOutcome> {
    const { snapshots, sandboxes } = this.#options;
    const { n, tag } = request;
    const wait = request.wait ?? true;
    if (n !== undefined && !wait)
      throw new ApiError('invalid_argument', {
        field: 'n',
        problem: 'children need a snapshot that is ready; leave out wait: false',
      });
    const mode = modeOf(request);
    if (tag !== undefined) snapshots.assertFree(tag);
    const machine = await sandboxes.machine(id);
    const { branching, draft } = await this.#begin(machine, { mode, patient: wait }, tag ?? null, signal);
    const written = this.#write(branching, draft);
    if (!wait) {
      written.catch(() => undefined); // Told by the snapshot's status, and the log.
      return { status: 202, reply: await snapshots.info(draft.row.id) };
    }
    await written;
    const info = await snapshots.info(draft.row.id);
    if (n === undefined) return { status: 201, reply: info };
    return this.#fork(info, n, signal);
  }

  /**
   * A sandbox takes the place of another one, which is branched first and then removed.
   *
   * @throws ApiError as of a branch; then nothing has changed
   */
  async promote(id: string, over: string, signal: AbortSignal): Promise<PromoteReply> {
    const { sandboxes } = this.#options;
    const [machine, old] = await Promise.all([sandboxes.machine(id), sandboxes.machine(over)]);
    if (machine.id === old.id)
      throw new ApiError('invalid_argument', { field: 'over', problem: `${over} is that sandbox itself` });
    const { reply } = await this.branch(old.id, {}, signal);
    return { sandbox: await sandboxes.replace(old.id, machine.id), snapshot: reply as SnapshotInfo };
  }

  /**
   * Called before a sandbox is removed: branches of it that have not begun are refused; what has been captured is written to its end,
   * while the sandbox stands still.
   */
  async settle(sandbox: string, machine: Machine | null): Promise<void> {
    const stop = this.#stopOf(sandbox);
    stop.abort(new ApiError('sandbox_not_running', { value: sandbox, state: 'stopping' }));
    machine?.exited.finally(() => this.#stops.delete(sandbox));
    const writing = this.#options.snapshots.drafts.writing(sandbox);
    if (writing.length === 0) return;
    await machine?.pause().catch(() => undefined);
    await Promise.race([
      Promise.all(writing.map((draft) => draft.settled)),
      machine?.exited,
      new Promise<void>((resolve) => setTimeout(resolve, settleMs).unref()),
    ]);
  }

  /** Waits for all that is being written, at most so long. */
  async close(limitMs: number): Promise<void> {
    const writing = this.#options.snapshots.drafts.writing();
    await Promise.race([
      Promise.all(writing.map((draft) => draft.settled)),
      new Promise<void>((resolve) => setTimeout(resolve, limitMs).unref()),
    ]);
  }

  /** Journals it, and captures. Resolves when the source runs again. */
  async #begin(
    machine: Machine,
    how: { mode: 'live' | 'diff' | 'full'; patient: boolean },
    tag: string | null,
    signal: AbortSignal,
  ): Promise<{ branching: Branching; draft: Draft }> {
    const { snapshots, log } = this.#options;
    await snapshots.removalsSettled(machine.id, machine.snapshotId);
    const { signal: stop } = this.#stopOf(machine.id);
    stop.throwIfAborted();
    // From here to the journal nothing is awaited: two of the same tag cannot both pass.
    if (tag !== null) snapshots.assertFree(tag);
    if (this.running >= maxBranches)
      throw new ApiError('busy', {
        what: `the host (${maxBranches} branches are being written; at most so many are at once)`,
      });
    const { name } = machine.manifest.template;
    const row = {
      id: newId('sn'),
      template: name,
      status: 'writing' as const,
      createdAt: Date.now(),
      tag,
      sandbox: machine.id,
      problem: null,
    };
    const draft = snapshots.drafts.begin(row, machine.manifest);
    try {
      const branching = await machine.branch({
        snapshotId: row.id,
        ...how,
        signal: AbortSignal.any([signal, stop]),
      });
      const { pauseMs, reason } = branching;
      draft.taken = { mode: branching.mode, pauseMs, ...(reason !== undefined && { reason }) };
      return { branching, draft };
    } catch (error) {
      snapshots.drafts.forget(row.id);
      log.warn({ sandbox: machine.id, snapshot: row.id, err: error }, 'a sandbox could not be branched');
      throw signal.aborted
        ? new ApiError('cancelled', {}, { cause: error })
        : toApiError(error, { sandbox: machine.id });
    }
  }

  /** Follows the writing to its end. */
  async #write(branching: Branching, draft: Draft): Promise<void> {
    const { snapshots, log } = this.#options;
    const facts = { sandbox: draft.row.sandbox, snapshot: draft.row.id };
    try {
      const { manifest, copyMs, physicalBytes } = await branching.ready;
      const { reason } = branching;
      snapshots.completed(manifest, draft.row.tag, {
        copyMs,
        physicalBytes,
        ...(reason !== undefined && { reason }),
      });
      snapshots.drafts.complete(draft);
      log.info({ ...facts, pauseMs: branching.pauseMs, copyMs, physicalBytes }, 'a sandbox was branched');
    } catch (error) {
      snapshots.drafts.fail(draft, messageOf(error));
      log.error({ ...facts, err: error }, 'a branch could not be written');
      throw toApiError(error, { sandbox: draft.row.sandbox });
    }
  }

  async #fork(info: SnapshotInfo, n: number, signal: AbortSignal): Promise<BranchOutcome> {
    const { sandboxes, snapshots } = this.#options;
    try {
      const report = await sandboxes.fork(info.id, { snapshot_tag: info.tag, n }, signal);
      const reply = { ...(await snapshots.info(info.id)), ...report };
      return { status: report.failures.length === 0 ? 201 : 207, reply };
    } catch (error) {
      // The branch stands: whoever asked can fork from it when what was in the way is gone.
      const { code, body } = toApiError(error);
      const failed = new ApiError(code, {}, { cause: error });
      Object.assign(failed, { body: { ...body, details: { ...body.details, snapshot_id: info.id } } });
      throw failed;
    }
  }

  /** Aborted from when the sandbox is being removed, with why. */
  #stopOf(sandbox: string): AbortController {
    const known = this.#stops.get(sandbox);
    if (known !== undefined) return known;
    const stop = new AbortController();
    this.#stops.set(sandbox, stop);
    return stop;
  }
}

/** The mode that a request means, in its own words or those of forkd v1. */
function modeOf({ mode, diff }: BranchRequest): 'live' | 'diff' | 'full' {
  if (mode !== undefined && diff === true && mode !== 'diff')
    throw new ApiError('invalid_argument', {
      field: 'diff',
      problem: `it contradicts mode ${mode}; leave it out`,
    });
  return mode ?? (diff === true ? 'diff' : 'live');
}
