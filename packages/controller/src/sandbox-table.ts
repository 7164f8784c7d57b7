/**
 * The sandboxes that this daemon knows, by id and by the names that they took over; each with its row in the registry.
 */
import { type ForkRequest, quoteValue, type SandboxInfo, type SandboxState } from '@forkd/api';
import { type Machine, newId } from '@forkd/engine';
import { ApiError } from './errors.js';
import type { Interpreters } from './interpreters.js';
import type { Registry, SandboxRow } from './registry/registry.js';
import { infoOf } from './sandbox-info.js';

/** A sandbox that this daemon knows. */
export interface Entry {
  row: SandboxRow;
  machine: Machine | null;
  interpreters: Interpreters | null;
  /** Set while it is being removed; later removals join. */
  removal: Promise<void> | null;
}

export interface SandboxTableOptions {
  registry: Registry;
  /** Whether a snapshot was branched off a sandbox. */
  hasBranched?: (id: string) => boolean;
}

export class SandboxTable {
  readonly #registry: Registry;
  readonly #hasBranched: (id: string) => boolean;
  readonly #entries = new Map<string, Entry>();
  /** Ids whose place another sandbox has taken, and whose. */
  readonly #aliases: Map<string, string>;

  constructor({ registry, hasBranched }: SandboxTableOptions) {
    this.#registry = registry;
    this.#hasBranched = hasBranched ?? (() => false);
    this.#aliases = registry.aliases();
  }

  /** Every entry, oldest first. */
  get entries(): Entry[] {
    return [...this.#entries.values()];
  }

  /** Number of sandboxes that use the host. */
  get live(): number {
    let live = 0;
    for (const { row } of this.#entries.values()) if (row.state !== 'exited') live += 1;
    return live;
  }

  /** Number of sandboxes by state. */
  counts(): Record<SandboxState, number> {
    const counts: Record<SandboxState, number> = {
      forking: 0,
      running: 0,
      stopping: 0,
      exited: 0,
      unreachable: 0,
    };
    for (const { row } of this.#entries.values()) counts[row.state] += 1;
    return counts;
  }

  /** The entry of an id, or of a name that one took over; undefined where there is none. */
  find(id: string): Entry | undefined {
    return this.#entries.get(id) ?? this.#entries.get(this.#aliases.get(id) ?? '');
  }

  /** The same. @throws ApiError `sandbox_not_found` */
  get(id: string): Entry {
    const entry = this.find(id);
    if (entry === undefined) throw new ApiError('sandbox_not_found', { value: shown(id) });
    return entry;
  }

  /** Whether an entry is still the one that is known by its id: neither dropped nor let go. */
  holds(entry: Entry): boolean {
    return this.#entries.get(entry.row.id) === entry;
  }

  /** Enters what the registry has of an earlier daemon. */
  enter(row: SandboxRow): Entry {
    const entry: Entry = { row, machine: null, interpreters: null, removal: null };
    this.#entries.set(row.id, entry);
    return entry;
  }

  /** Enters the children of one request and journals them, before anything of them exists. */
  enterChildren(snapshotId: string, request: ForkRequest, n: number): Entry[] {
    const entries = Array.from({ length: n }, (_, index) => this.enter(childRow(snapshotId, request, index)));
    try {
      this.#registry.journal(entries.map(({ row }) => row));
    } catch (error) {
      for (const { row } of entries) this.#entries.delete(row.id);
      throw error;
    }
    return entries;
  }

  /** Forgets one and its names, here and in the registry. */
  drop({ row: { id } }: Entry): void {
    this.#entries.delete(id);
    this.#registry.forget(id);
    const names = this.#namesOf(id);
    for (const name of names) this.#aliases.delete(name);
    if (names.length > 0) this.#registry.dropAliases(id);
  }

  /** Forgets all, here alone: the next daemon finds them in the registry. Returns them. */
  release(): Entry[] {
    const entries = this.entries;
    this.#entries.clear();
    return entries;
  }

  /** Lets a sandbox be called by the id of another one too, and by whatever that was called. */
  passNames(from: string, to: string): void {
    this.#registry.setAlias(from, to);
    for (const name of this.#namesOf(from)) this.#aliases.set(name, to);
    this.#aliases.set(from, to);
  }

  info({ row, machine }: Entry): SandboxInfo {
    const aliases = this.#namesOf(row.id);
    return {
      ...infoOf(row, machine),
      ...(aliases.length > 0 && { aliases }),
      has_branched: this.#hasBranched(row.id),
    };
  }

  #namesOf(id: string): string[] {
    return [...this.#aliases].filter(([, target]) => target === id).map(([name]) => name);
  }
}

function childRow(snapshotId: string, request: ForkRequest, index: number): SandboxRow {
  const id = newId('sb');
  return {
    id,
    snapshotId,
    snapshotRef: request.snapshot_tag,
    state: 'forking',
    createdAt: Date.now(),
    hostname: request.hostname_prefix === undefined ? id : `${request.hostname_prefix}-${index}`,
    generation: null,
    pid: null,
    metadata: request.metadata ?? {},
    machine: null,
    exit: null,
  };
}

/** An id as it stands in a message: as it is when it looks like one, else quoted. */
function shown(id: string): string {
  return /^[A-Za-z0-9_-]{1,64}$/.test(id) ? id : quoteValue(id);
}
