/**
 * Sandboxes of this daemon: what lives, what ended, and the journal of it.
 *
 * A row is journaled as `forking` before anything of a child exists and as `stopping` before anything of it goes, so that a daemon that
 * starts again knows what to finish.
 */
import {
  type ForkFailure,
  type ForkRequest,
  maxChildren,
  quoteValue,
  type SandboxInfo,
  type SandboxState,
} from '@forkd/api';
import { type Engine, EngineError, type Machine, messageOf, type VmmExit } from '@forkd/engine';
import { ApiError, toApiError } from './errors.js';
import { exitInfo } from './exit-info.js';
import { type Interpreters, openInterpreters } from './interpreters.js';
import type { Log } from './log.js';
import type { SandboxRow } from './registry/registry.js';
import { factsOf } from './sandbox-info.js';
import { type Entry, SandboxTable, type SandboxTableOptions } from './sandbox-table.js';

export interface ForkReportEntry {
  sandboxes: SandboxInfo[];
  failures: ForkFailure[];
}

export interface SandboxesOptions extends SandboxTableOptions {
  engine: Engine;
  log: Log;
  /** Called before a sandbox is removed, and waited for: what is written of it comes to its end. */
  beforeRemove?: (id: string, machine: Machine | null) => Promise<void>;
  /** Called whenever the number of live sandboxes may have changed. */
  onChange?: (snapshotId: string) => void;
  /** Called for each child, with seconds when it was started. */
  onFork?: (outcome: 'ok' | 'failed', seconds: number) => void;
}

/** Sandboxes that are adopted at once when the daemon starts. */
const adoptAtOnce = 16;

export class Sandboxes {
  readonly #options: SandboxesOptions;
  readonly #table: SandboxTable;

  constructor(options: SandboxesOptions) {
    this.#options = options;
    this.#table = new SandboxTable(options);
  }

  /** Finishes what an earlier daemon began, and takes over what lives. */
  async recover(): Promise<void> {
    const { engine, registry, log } = this.#options;
    const rows = registry.sandboxes();
    const known = new Set(rows.map((row) => row.id));
    const strays = (await engine.listRunDirectories()).filter((id) => !known.has(id));
    const jobs = [
      ...rows.map((row) => () => this.#recoverRow(row)),
      ...strays.map((id) => async () => {
        log.warn({ sandbox: id }, 'a run directory that no sandbox has: swept');
        await engine.sweep(id);
      }),
    ];
    const worker = async () => {
      for (let job = jobs.shift(); job !== undefined; job = jobs.shift()) {
        await job().catch((error: unknown) => log.error({ err: error }, 'recovering a sandbox failed'));
      }
    };
    await Promise.all(Array.from({ length: adoptAtOnce }, worker));
    registry.flush();
  }

  /**
   * Starts children of a snapshot. Children that fail do not fail their siblings; when all fail, the error says why.
   *
   * @param signal The caller went away: children that run already are removed again.
   */
  async fork(snapshotId: string, request: ForkRequest, signal: AbortSignal): Promise<ForkReportEntry> {
    const { engine, registry } = this.#options;
    const n = request.n ?? 1;
    if (!Number.isInteger(n) || n < 1 || n > maxChildren) {
      throw new ApiError('invalid_argument', {
        field: 'n',
        problem: `${quoteValue(n)} is not in 1 to ${maxChildren}`,
      });
    }
    const entries = this.#table.enterChildren(snapshotId, request, n);
    const index = new Map(entries.map((entry, at) => [entry.row.id, at]));
    const failures: ForkFailure[] = [];
    const settled = new Set<string>();
    const settle = (id: string, result: { machine: Machine } | { error: unknown }) => {
      const entry = this.#table.find(id);
      if (entry === undefined || settled.has(id)) return;
      settled.add(id);
      if ('machine' in result) {
        this.#started(entry, result.machine);
        return;
      }
      this.#drop(entry);
      this.#options.onFork?.('failed', 0);
      failures.push({ index: index.get(id) ?? 0, id, error: toApiError(result.error, { sandbox: id }).body });
    };
    try {
      const results = await engine.fork({
        snapshotId,
        children: entries.map(({ row }) => ({
          id: row.id,
          hostname: row.hostname,
          env: request.env ?? {},
          metadata: JSON.stringify(row.metadata),
        })),
        signal,
        onChild: (result) => settle(result.id, result),
      });
      for (const result of results) settle(result.id, result);
    } catch (error) {
      await this.#undo(entries, settled);
      throw error;
    }
    if (signal.aborted) {
      await this.#undo(entries, settled);
      throw new ApiError('cancelled');
    }
    // A daemon that dies after the answer must find them as running, not as half made.
    registry.flush();
    failures.sort((a, b) => a.index - b.index);
    const sandboxes = entries
      .filter((entry) => entry.machine !== null)
      .map((entry) => this.#table.info(entry));
    const first = failures[0];
    if (sandboxes.length === 0 && first !== undefined) {
      throw new ApiError('fork_failed', { n, problem: first.error.error }, { details: { failures } });
    }
    return { sandboxes, failures };
  }

  /** All sandboxes, oldest first. */
  list(): SandboxInfo[] {
    return this.#table.entries.map((entry) => this.#table.info(entry));
  }

  /** The same, with the memory of each that runs. */
  async listWithMemory(): Promise<SandboxInfo[]> {
    return Promise.all(this.#table.entries.map(({ row }) => this.info(row.id)));
  }

  /** One sandbox, with its memory when it runs. */
  async info(id: string): Promise<SandboxInfo> {
    const entry = this.#table.get(id);
    const info = this.#table.info(entry);
    if (entry.row.state !== 'running' || entry.machine === null) return info;
    // It may end while it is measured: then it is shown without.
    const bytes = await entry.machine.memoryBytes().catch(() => undefined);
    return bytes === undefined ? this.#table.info(entry) : { ...info, memory_bytes: bytes };
  }

  /** The machine of a sandbox that runs. @throws ApiError that says why it has none. */
  async machine(id: string): Promise<Machine> {
    const entry = this.#table.get(id);
    if (entry.row.state === 'unreachable') await this.#adopt(entry);
    const { row, machine } = entry;
    if (row.state === 'running' && machine !== null) return machine;
    if (row.state === 'exited') throw exitedError(row);
    if (row.state === 'unreachable') {
      throw new ApiError('guest_unreachable', { sandbox: id, problem: 'its shim does not answer' });
    }
    throw new ApiError('sandbox_not_running', { value: id, state: row.state });
  }

  /** What a failed call to a sandbox is called: where it has ended meanwhile, that is why. */
  explain(id: string | undefined, error: ApiError): ApiError {
    const entry = this.#table.find(id ?? '');
    if (entry?.row.state !== 'exited' || error.code !== 'guest_unreachable') return error;
    return exitedError(entry.row, error);
  }

  /** Warm interpreters of a sandbox that runs. */
  async interpreters(id: string): Promise<Interpreters> {
    const machine = await this.machine(id);
    const entry = this.#table.get(id);
    entry.interpreters ??= openInterpreters(machine);
    return entry.interpreters;
  }

  async logs(id: string): Promise<{ console: string; vmm: string }> {
    const { machine, row } = this.#table.get(id);
    if (machine !== null) return machine.logs();
    return { console: '', vmm: row.exit?.last_words ?? '' };
  }

  /** Ends a sandbox and removes all it had. A second call joins the first. */
  async remove(id: string): Promise<void> {
    const entry = this.#table.get(id);
    if (entry.row.state === 'forking') {
      throw new ApiError('sandbox_not_running', { value: id, state: 'forking' });
    }
    entry.removal ??= this.#remove(entry).finally(() => {
      entry.removal = null;
    });
    return entry.removal;
  }

  /**
   * Lets a sandbox take the place of another one, which is removed: its id and what is called by it, its metadata too. A daemon that
   * dies meanwhile leaves both, or the one in its new place.
   */
  async replace(id: string, by: string): Promise<SandboxInfo> {
    const old = this.#table.get(id).row;
    const { row } = this.#table.get(by);
    this.#table.passNames(old.id, row.id);
    row.metadata = { ...row.metadata, ...old.metadata };
    this.#options.registry.record(row);
    await this.remove(old.id);
    return this.info(row.id);
  }

  /** Ids of the sandboxes that keep a snapshot from being removed: all but those that have ended. */
  dependents(snapshotId: string): string[] {
    const live = this.#table.entries.filter(({ row }) => row.state !== 'exited');
    return live.filter(({ row }) => row.snapshotId === snapshotId).map(({ row }) => row.id);
  }

  /** Number of sandboxes by state. */
  counts(): Record<SandboxState, number> {
    return this.#table.counts();
  }

  /** Number of sandboxes that use the host. */
  get live(): number {
    return this.#table.live;
  }

  /** Lets go of all: they run on, to be adopted by the next daemon. */
  async detach(): Promise<void> {
    await Promise.allSettled(
      this.#table.release().map(async (entry) => {
        await entry.interpreters?.close();
        await entry.machine?.detach();
      }),
    );
  }

  #started(entry: Entry, machine: Machine): void {
    this.#attach(entry, machine);
    this.#options.onFork?.('ok', machine.timings.totalMs / 1000);
  }

  #attach(entry: Entry, machine: Machine): void {
    entry.machine = machine;
    entry.interpreters = null;
    entry.row.state = 'running';
    entry.row.pid = machine.vmmPid;
    entry.row.generation = machine.generation;
    entry.row.hostname = machine.hostname || entry.row.hostname;
    entry.row.machine = factsOf(machine);
    this.#options.registry.record(entry.row);
    machine.exited.then(
      (exit) => this.#exited(entry, exit),
      (error: unknown) => this.#exited(entry, { kind: 'unknown', lastWords: messageOf(error) }),
    );
  }

  #exited(entry: Entry, exit: VmmExit): void {
    const { row } = entry;
    // Whoever removes it, or has let go of it, knows already.
    if (row.state === 'stopping' || !this.#table.holds(entry)) return;
    entry.interpreters?.close().catch(() => undefined);
    entry.interpreters = null;
    row.state = 'exited';
    row.pid = null;
    row.exit = exitInfo(exit);
    this.#options.log.warn({ sandbox: row.id, exit: row.exit }, 'a sandbox ended by itself');
    this.#options.registry.record(row);
    this.#options.onChange?.(row.snapshotId);
  }

  async #remove(entry: Entry): Promise<void> {
    const { engine, registry } = this.#options;
    const { row, machine } = entry;
    row.state = 'stopping';
    registry.record(row);
    // A full disk is no reason to refuse what makes room on it: then the journal is behind, and is tried again.
    registry.flush();
    await this.#options.beforeRemove?.(row.id, machine);
    await entry.interpreters?.close().catch(() => undefined);
    entry.interpreters = null;
    try {
      if (machine !== null) await machine.destroy();
      else await engine.sweep(row.id);
    } catch (error) {
      // Its own way out failed; by identity it goes regardless of what state its parts are in.
      this.#options.log.error({ sandbox: row.id, err: error }, 'destroying a sandbox failed, sweeping it');
      await engine.sweep(row.id);
    }
    this.#drop(entry);
  }

  #drop(entry: Entry): void {
    this.#table.drop(entry);
    this.#options.onChange?.(entry.row.snapshotId);
  }

  /** Takes back a fork that failed as a whole or that nobody waits for. */
  async #undo(entries: readonly Entry[], settled: ReadonlySet<string>): Promise<void> {
    await Promise.allSettled(
      entries.map(async (entry) => {
        if (!this.#table.holds(entry)) return;
        if (settled.has(entry.row.id)) await this.remove(entry.row.id);
        else this.#drop(entry);
      }),
    );
  }

  async #recoverRow(row: SandboxRow): Promise<void> {
    const entry = this.#table.enter(row);
    if (row.state === 'forking' || row.state === 'stopping') {
      // Nobody ever got an answer with this id, or somebody wanted it gone.
      await this.#options.engine.sweep(row.id);
      this.#drop(entry);
      return;
    }
    if (row.state !== 'exited') await this.#adopt(entry);
  }

  async #adopt(entry: Entry): Promise<void> {
    const { engine, log, registry } = this.#options;
    try {
      this.#attach(entry, await engine.adopt(entry.row.id));
    } catch (error) {
      if (
        error instanceof EngineError &&
        (error.code === 'sandbox_exited' || error.code === 'sandbox_not_found')
      ) {
        const exit = (error.details?.exit ?? { kind: 'unknown', lastWords: '' }) as VmmExit;
        this.#exited(entry, exit);
        return;
      }
      log.warn({ sandbox: entry.row.id, err: error }, 'a sandbox cannot be reached');
      entry.row.state = 'unreachable';
      registry.record(entry.row);
    }
  }
}

function exitedError(row: SandboxRow, cause?: unknown): ApiError {
  const reason = row.exit?.reason ?? 'unknown';
  return new ApiError('sandbox_exited', { value: row.id, reason }, { details: { exit: row.exit }, cause });
}
