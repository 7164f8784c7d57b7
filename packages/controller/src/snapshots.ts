/** Snapshots of this daemon: the tags that point to them, and what keeps them. What exists is what is on disk. */
import { isSnapshotId, quoteValue, type SnapshotDetail, type SnapshotInfo } from '@forkd/api';
import { type Engine, EngineError, type Manifest, messageOf } from '@forkd/engine';
import { ApiError } from './errors.js';
import type { Log } from './log.js';
import type { Registry } from './registry/registry.js';

export interface SnapshotsOptions {
  engine: Engine;
  registry: Registry;
  log: Log;
  /** Sandboxes that continue from a snapshot and live. */
  dependents: (snapshotId: string) => string[];
}

export class Snapshots {
  readonly #options: SnapshotsOptions;
  readonly #tags: Map<string, string>;
  /** Manifests never change. */
  readonly #manifests = new Map<string, Manifest>();
  /** Snapshots that are being removed: no fork may begin. */
  readonly #removing = new Set<string>();

  constructor(options: SnapshotsOptions) {
    this.#options = options;
    this.#tags = options.registry.tags();
  }

  /**
   * Gives a tag back to snapshots whose template has none: after a daemon that died between build and tag, or a registry that was
   * lost. The newest of each template gets it.
   */
  async recover(): Promise<void> {
    const { registry, log } = this.#options;
    const tagged = new Set(this.#tags.values());
    const candidates: Manifest[] = [];
    for (const id of await this.#options.engine.listSnapshots()) {
      const manifest = await this.manifest(id).catch(() => null);
      if (manifest !== null && !tagged.has(id) && !this.#tags.has(manifest.template.name))
        candidates.push(manifest);
    }
    candidates.sort((a, b) => a.createdAt - b.createdAt);
    for (const manifest of candidates) {
      const tag = manifest.template.name;
      log.warn({ tag, snapshot: manifest.id }, 'a snapshot without tag gets that of its template');
      registry.moveTag(tag, { id: manifest.id, template: tag, createdAt: manifest.createdAt });
      this.#tags.set(tag, manifest.id);
    }
  }

  /** The id that a tag or id stands for. Whether it exists on disk is found out by who uses it. */
  resolve(ref: string): string {
    const id = this.#tags.get(ref) ?? (isSnapshotId(ref) ? ref : undefined);
    if (id === undefined) throw notFound(ref);
    if (this.#removing.has(id))
      throw new ApiError('snapshot_not_ready', { value: ref, state: 'being removed' });
    return id;
  }

  /** Where a tag points; undefined when it does not exist. */
  tagTarget(tag: string): string | undefined {
    return this.#tags.get(tag);
  }

  async manifest(id: string): Promise<Manifest> {
    const kept = this.#manifests.get(id);
    if (kept !== undefined) return kept;
    const manifest = await this.#options.engine.readManifest(id);
    this.#manifests.set(id, manifest);
    return manifest;
  }

  /** All snapshots on disk, newest first. Damaged ones are shown with what is wrong. */
  async list(): Promise<SnapshotInfo[]> {
    const ids = await this.#options.engine.listSnapshots();
    for (const id of this.#manifests.keys()) if (!ids.includes(id)) this.#manifests.delete(id);
    const infos = await Promise.all(
      ids.map((id) => this.#info(id).catch((error: unknown) => this.#damaged(id, error))),
    );
    return infos.filter((info) => info !== null).sort((a, b) => b.created_at_unix - a.created_at_unix);
  }

  async info(ref: string): Promise<SnapshotInfo> {
    const id = this.resolve(ref);
    return this.#named(ref, () => this.#info(id));
  }

  async detail(ref: string): Promise<SnapshotDetail> {
    const { engine, dependents } = this.#options;
    const id = this.resolve(ref);
    return this.#named(ref, async () => {
      const info = await this.#info(id);
      const sizes = await engine.snapshotSizes(id);
      return {
        ...info,
        memory_logical_bytes: sizes.memoryLogical,
        memory_physical_bytes: sizes.memoryPhysical,
        vmstate_bytes: sizes.state,
        disk_physical_bytes: sizes.diskPhysical,
        image_bytes: sizes.image,
        chain_depth: 0,
        ancestors: [],
        dependents: dependents(id),
        manifest: await this.manifest(id),
      };
    });
  }

  async verify(
    ref: string,
    signal: AbortSignal,
  ): Promise<{ id: string; problems: string[]; bytesRead: number }> {
    const id = this.resolve(ref);
    const report = await this.#named(ref, () => this.#options.engine.verifySnapshot(id, signal));
    return { id, ...report };
  }

  /** Points a tag at a new snapshot, at once; what the tag pointed to before goes when nothing needs it. */
  async moveTag(tag: string, manifest: Manifest): Promise<void> {
    const before = this.#tags.get(tag);
    this.#manifests.set(manifest.id, manifest);
    this.#options.registry.moveTag(tag, {
      id: manifest.id,
      template: manifest.template.name,
      createdAt: manifest.createdAt,
    });
    this.#tags.set(tag, manifest.id);
    if (before !== undefined && before !== manifest.id) await this.collect(before);
  }

  /** Removes a snapshot with all its tags. */
  async remove(ref: string): Promise<void> {
    const id = this.resolve(ref);
    const dependents = this.#options.dependents(id);
    if (dependents.length > 0) {
      throw new ApiError(
        'snapshot_in_use',
        { value: ref, dependents: someOf(dependents) },
        { details: { dependents } },
      );
    }
    await this.#named(ref, () => this.#remove(id));
  }

  /** Removes a snapshot that no tag points to and no sandbox continues from. Such are what rebuilt templates leave. */
  async collect(id: string): Promise<void> {
    if (this.tagsOf(id).length > 0 || this.#removing.has(id)) return;
    if (this.#options.dependents(id).length > 0) return;
    this.#options.log.info({ snapshot: id }, 'a snapshot that nothing needs any more is removed');
    await this.#remove(id).catch((error: unknown) => {
      const gone = error instanceof EngineError && error.code === 'snapshot_not_found';
      if (!gone) this.#options.log.error({ snapshot: id, err: error }, 'removing a snapshot failed');
    });
  }

  /** Tags that point to a snapshot, in order. */
  tagsOf(id: string): string[] {
    const tags: string[] = [];
    for (const [tag, target] of this.#tags) if (target === id) tags.push(tag);
    return tags.sort();
  }

  async #remove(id: string): Promise<void> {
    this.#removing.add(id);
    try {
      // First the names, then the thing: no tag ever points to what is half removed.
      this.#options.registry.dropSnapshot(id);
      for (const tag of this.tagsOf(id)) this.#tags.delete(tag);
      this.#manifests.delete(id);
      await this.#options.engine.removeSnapshot(id);
    } finally {
      this.#removing.delete(id);
    }
  }

  async #info(id: string): Promise<SnapshotInfo> {
    const { engine, dependents } = this.#options;
    const manifest = await this.manifest(id);
    const tags = this.tagsOf(id);
    const problem = await engine.incompatibility(manifest);
    return {
      tag: tags[0] ?? id,
      tags,
      id,
      dir: engine.snapshotDirectory(id),
      created_at_unix: Math.floor(manifest.createdAt / 1000),
      status: 'ready',
      bootable: problem === null,
      ...(problem !== null && { warning: problem }),
      template: manifest.template.name,
      engine: manifest.machine.engine,
      engine_version: manifest.machine.engineVersion,
      accelerator: manifest.machine.accelerator,
      memory_mib: Math.round(manifest.memoryBytes / 1_048_576),
      vcpus: manifest.vcpus,
      disk_mib: Math.round(manifest.diskBytes / 1_048_576),
      interpreters: manifest.template.interpreters.map((interpreter) => interpreter.name),
      sandboxes: dependents(id).length,
    };
  }

  #damaged(id: string, error: unknown): SnapshotInfo | null {
    // It went away between the listing and the look at it.
    if (error instanceof EngineError && error.code === 'snapshot_not_found') return null;
    const tags = this.tagsOf(id);
    return {
      tag: tags[0] ?? id,
      tags,
      id,
      dir: this.#options.engine.snapshotDirectory(id),
      created_at_unix: 0,
      status: 'failed',
      bootable: false,
      warning: messageOf(error),
      engine: 'unknown',
      accelerator: 'unknown',
      memory_mib: 0,
      vcpus: 0,
      interpreters: [],
      sandboxes: this.#options.dependents(id).length,
    };
  }

  /** Errors name the snapshot as the caller did. */
  async #named<T>(ref: string, call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      if (error instanceof EngineError && error.code === 'snapshot_not_found') throw notFound(ref);
      throw error;
    }
  }
}

function notFound(ref: string): ApiError {
  return new ApiError('snapshot_not_found', {
    value: /^[A-Za-z0-9_-]{1,64}$/.test(ref) ? ref : quoteValue(ref),
  });
}

function someOf(names: readonly string[]): string {
  const shown = names.slice(0, 5).join(', ');
  return names.length > 5 ? `${shown} and ${names.length - 5} more` : shown;
}
