/**
 * Whether a snapshot outlives a crash of the host. One that is ready can be forked on this boot; it is durable once all of it has been synced,
 * and all that it stands on. Then a file beside its manifest says so. Under another boot, what has no such file is read against its hashes: what
 * is whole becomes durable, what is not has failed.
 */
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError, messageOf } from '../errors.js';
import { filesOf, type Manifest } from './manifest.js';
import { syncDirectory, syncFile, writeSynced } from './sync.js';
import { verifySnapshot } from './verify.js';

/** Name of the file that says it. */
export const DURABLE = 'durable';

/** As much of a store as this asks for. */
export interface DurableStore {
  root: string;
  directory(id: string): string;
  manifest(id: string): Promise<Manifest>;
  /** The snapshots that one stands on, base first. */
  below(manifest: Manifest): Promise<Manifest[]>;
}

interface Syncing {
  done: Promise<void>;
  stop: AbortController;
}

/** What a start of the daemon under a boot did with what was not durable. */
export interface RecoveryReport {
  /** Written under this boot: whole, and being synced now. */
  resumed: string[];
  /** Written under another boot, read, found whole, and synced. */
  verified: string[];
  /** Not whole. */
  failed: { id: string; problem: string }[];
}

export class Durability {
  readonly #store: DurableStore;
  readonly #durable = new Set<string>();
  readonly #syncing = new Map<string, Syncing>();
  readonly #problems = new Map<string, string>();

  constructor(store: DurableStore) {
    this.#store = store;
  }

  /** Whether a snapshot whose manifest was read is known to be durable. */
  has(id: string): boolean {
    return this.#durable.has(id);
  }

  /** Why a snapshot is not whole. */
  problem(id: string): string | undefined {
    return this.#problems.get(id);
  }

  /** Looks whether one is durable; called when its manifest is read. Those from before there was a boot id were synced before they were seen. */
  async look({ id, bootId }: Manifest): Promise<void> {
    const path = join(this.#store.directory(id), DURABLE);
    const marked = await access(path).then(
      () => true,
      () => false,
    );
    if (marked || bootId === undefined) this.#durable.add(id);
  }

  /**
   * Syncs a snapshot and what it stands on. Calls at the same time share the work.
   *
   * @throws EngineError cancelled when it is removed meanwhile; what the host says when it cannot be synced: then it has failed
   */
  ensure(id: string): Promise<void> {
    const known = this.#syncing.get(id);
    if (known) return known.done;
    if (this.#durable.has(id)) return Promise.resolve();
    const stop = new AbortController();
    const done = this.#sync(id, stop.signal).finally(() => this.#syncing.delete(id));
    this.#syncing.set(id, { done, stop });
    return done;
  }

  /** Ends what is under way of a snapshot that is to be removed, and forgets it. */
  async forget(id: string): Promise<void> {
    const syncing = this.#syncing.get(id);
    syncing?.stop.abort(new EngineError('cancelled', `snapshot ${id} is being removed`));
    await syncing?.done.catch(() => {}); // Told to who waits for it.
    this.#durable.delete(id);
    this.#problems.delete(id);
  }

  /** Waits for all that is being synced. */
  async settled(): Promise<void> {
    await Promise.allSettled([...this.#syncing.values()].map(({ done }) => done));
  }

  /** Deals with what an earlier daemon left without the mark. @param bootId of this boot */
  async recover(manifests: readonly Manifest[], bootId: string): Promise<RecoveryReport> {
    const report: RecoveryReport = { resumed: [], verified: [], failed: [] };
    const open = manifests.filter(({ id }) => !this.#durable.has(id));
    // What one stands on comes first.
    open.sort((a, b) => (a.branch?.chain.length ?? 0) - (b.branch?.chain.length ?? 0));
    for (const manifest of open) {
      const { id } = manifest;
      if (manifest.bootId === bootId) {
        report.resumed.push(id);
        this.ensure(id).catch(() => {}); // Told by what it is from then on.
        continue;
      }
      const problem = await this.#problemOf(manifest);
      if (problem === null) report.verified.push(id);
      else {
        this.#problems.set(id, problem);
        report.failed.push({ id, problem });
      }
    }
    return report;
  }

  async #problemOf(manifest: Manifest): Promise<string | null> {
    try {
      await this.#store.below(manifest);
      const { problems } = await verifySnapshot(this.#store.directory(manifest.id), manifest);
      if (problems.length > 0)
        return `the host went down before it was synced, and it is not whole: ${problems.join('; ')}`;
      await this.ensure(manifest.id);
      return null;
    } catch (error) {
      return messageOf(error);
    }
  }

  async #sync(id: string, signal: AbortSignal): Promise<void> {
    const { directory, root } = this.#store;
    const dir = directory(id);
    try {
      const manifest = await this.#store.manifest(id);
      for (const link of await this.#store.below(manifest)) await this.ensure(link.id);
      for (const { name } of filesOf(manifest)) {
        signal.throwIfAborted();
        await syncFile(join(dir, name));
      }
      signal.throwIfAborted();
      await syncFile(join(dir, 'manifest.json'));
      await syncDirectory(dir);
      await syncDirectory(root);
      signal.throwIfAborted();
      await writeSynced(join(dir, DURABLE), '');
      await syncDirectory(dir);
      this.#durable.add(id);
    } catch (error) {
      signal.throwIfAborted();
      this.#problems.set(id, `it could not be synced: ${messageOf(error)}`);
      throw error;
    }
  }
}
