/** Snapshots of this daemon: the tags that point to them, and what keeps them. What exists is what is on disk. */
import {
  isSandboxId,
  isSnapshotId,
  isTag,
  quoteValue,
  type RemovalReport,
  type SnapshotDetail,
  type SnapshotInfo,
} from '@forkd/api';
import { type Engine, EngineError, type Manifest } from '@forkd/engine';
import { Drafts } from './drafts.js';
import { ApiError } from './errors.js';
import { ancestorsOf, descendantsOf, unneeded } from './lineage.js';
import type { Log } from './log.js';
import type { Registry } from './registry/registry.js';
import {
  type BranchFacts,
  damagedInfo,
  draftInfo,
  readyInfo,
  type SnapshotContext,
} from './snapshot-info.js';

export interface SnapshotsOptions {
  engine: Engine;
  registry: Registry;
  log: Log;
  /** Sandboxes that continue from a snapshot and live. */
  dependents: (snapshotId: string) => string[];
}

/** As much of a snapshot as its tags are kept with: of a manifest, or of the journal where that cannot be read. */
interface NamedSnapshot {
  id: string;
  template: string | { name: string };
  createdAt: number;
}

export class Snapshots {
  /** What is being branched off. */
  readonly drafts: Drafts;
  readonly #options: SnapshotsOptions;
  readonly #tags: Map<string, string>;
  /** Those that were read; the engine tells when flattening has changed one. */
  readonly #manifests = new Map<string, Manifest>();
  readonly #branchFacts = new Map<string, BranchFacts>();
  /** Snapshots that are being removed: no fork and no branch may begin on them. */
  readonly #removing = new Map<string, Promise<void>>();

  constructor(options: SnapshotsOptions) {
    this.#options = options;
    this.#tags = options.registry.tags();
    this.drafts = new Drafts(options.registry);
    options.engine.onFlattened((manifest) => {
      if (this.#manifests.has(manifest.id)) this.#manifests.set(manifest.id, manifest);
    });
  }

  /**
   * Finishes branches that a daemon left when it ended, and gives a tag back to snapshots whose template has none: after a daemon that
   * died between build and tag, or a registry that was lost. The newest of each template gets it.
   */
  async recover(): Promise<void> {
    const { registry, log, engine } = this.#options;
    for (const row of registry.drafts()) {
      if (row.status === 'failed') {
        registry.dropSnapshot(row.id);
        continue;
      }
      const manifest = await this.manifest(row.id).catch((error: unknown) => (isGone(error) ? null : row));
      if (manifest === null)
        this.drafts.adopt({ ...row, status: 'failed', problem: 'the daemon ended while it was written' });
      else this.#complete(manifest, row.tag);
    }
    const tagged = new Set(this.#tags.values());
    const candidates: Manifest[] = [];
    for (const id of await engine.listSnapshots()) {
      const manifest = await this.manifest(id).catch(() => null);
      // A branch is no template's: it had a tag of its own, or none.
      const orphan = manifest !== null && !manifest.branch && !tagged.has(id);
      if (orphan && !this.#tags.has(manifest.template.name)) candidates.push(manifest);
    }
    candidates.sort((a, b) => a.createdAt - b.createdAt);
    for (const manifest of candidates) {
      const tag = manifest.template.name;
      log.warn({ tag, snapshot: manifest.id }, 'a snapshot without tag gets that of its template');
      registry.moveTag(tag, { id: manifest.id, template: tag, createdAt: manifest.createdAt });
      this.#tags.set(tag, manifest.id);
    }
  }

  /** The id of a snapshot that a tag or id stands for. Whether it exists on disk is found out by who uses it. */
  resolve(ref: string): string {
    const draft = this.#tags.has(ref) ? undefined : this.drafts.find(ref);
    if (draft !== undefined) {
      const { status, problem } = draft.row;
      const state = status === 'writing' ? 'being written' : `not there: it could not be written: ${problem}`;
      throw new ApiError('snapshot_not_ready', { value: ref, state }, { details: { status } });
    }
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

  /** @throws ApiError tag_exists when a tag exists or a branch is being written to it; invalid_argument when it looks like an id */
  assertFree(tag: string): void {
    if (!isTag(tag))
      throw new ApiError('invalid_argument', {
        field: 'tag',
        problem: `${quoteValue(tag)} looks like an id`,
      });
    const writing = this.drafts.writing().some(({ row }) => row.tag === tag);
    if (writing || this.#tags.has(tag)) throw new ApiError('tag_exists', { value: tag });
  }

  async manifest(id: string): Promise<Manifest> {
    const kept = this.#manifests.get(id);
    if (kept !== undefined) return kept;
    const manifest = await this.#options.engine.readManifest(id);
    this.#manifests.set(id, manifest);
    return manifest;
  }

  /** All manifests that can be read, of what is on disk now. */
  async manifests(): Promise<Manifest[]> {
    const ids = await this.#options.engine.listSnapshots();
    const there = new Set(ids);
    for (const id of this.#manifests.keys()) if (!there.has(id)) this.#manifests.delete(id);
    await Promise.all(ids.map((id) => this.manifest(id).catch(() => null)));
    return [...this.#manifests.values()];
  }

  /** All snapshots on disk and in the making, newest first. Damaged ones are shown with what is wrong. */
  async list(): Promise<SnapshotInfo[]> {
    // What is being written is looked at first: it may be ready before the others have been looked at, and is in the list once in any case.
    const drafts = this.drafts.all().map((draft) => draftInfo(draft, this.#context(draft.row.id)));
    const told = new Set(drafts.map(({ id }) => id));
    const ids = (await this.#options.engine.listSnapshots()).filter((id) => !told.has(id));
    const ready = await Promise.all(
      ids.map((id) =>
        this.#info(id).catch((error: unknown) =>
          // It went away between the listing and the look at it.
          isGone(error) ? null : damagedInfo(id, this.#context(id), error),
        ),
      ),
    );
    return [...drafts, ...ready.filter((info) => info !== null)].sort(
      (a, b) => b.created_at_unix - a.created_at_unix,
    );
  }

  async info(ref: string): Promise<SnapshotInfo> {
    const draft = this.#tags.has(ref) ? undefined : this.drafts.find(ref);
    if (draft !== undefined) return draftInfo(draft, this.#context(draft.row.id));
    const id = this.resolve(ref);
    return this.#named(ref, () => this.#info(id));
  }

  async detail(ref: string): Promise<SnapshotDetail> {
    const id = this.resolve(ref);
    return this.#named(ref, async () => {
      const [info, manifest, sizes] = await Promise.all([
        this.#info(id),
        this.manifest(id),
        this.#options.engine.snapshotSizes(id),
      ]);
      const descendants = descendantsOf(id, await this.manifests());
      const ancestors = [...this.ancestorsOf(manifest)];
      const parent = ancestors.at(-1);
      return {
        ...info,
        memory_logical_bytes: sizes.memoryLogical,
        memory_physical_bytes: sizes.memoryPhysical,
        vmstate_bytes: sizes.state,
        disk_physical_bytes: sizes.diskPhysical,
        image_bytes: sizes.image,
        ...(parent !== undefined && { parent_tag: this.tagsOf(parent)[0] ?? parent }),
        chain_depth: ancestors.length,
        ancestors,
        dependents: [...this.#users(id), ...descendants],
        manifest,
      };
    });
  }

  /** Lets a branch stand alone: what is below it is not needed by it any more, nor by what stands on it. */
  async flatten(ref: string): Promise<SnapshotDetail> {
    const id = this.resolve(ref);
    await this.#named(ref, () => this.#options.engine.flattenSnapshot(id));
    return this.detail(ref);
  }

  /** Ids of the snapshots that one stands on, root first. */
  ancestorsOf(manifest: Manifest): readonly string[] {
    return ancestorsOf(manifest, (id) => this.#manifests.get(id));
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
    this.#point(tag, manifest);
    if (before !== undefined && before !== manifest.id) await this.collect(before);
  }

  /** Gives a snapshot one more tag. @throws ApiError tag_exists when another has it, and it is not to be moved */
  async tag(ref: string, tag: string, move: boolean): Promise<SnapshotInfo> {
    const id = this.resolve(ref);
    const manifest = await this.#named(ref, () => this.manifest(id));
    await this.#named(ref, () => this.#options.engine.durable(id));
    const taken = this.#tags.get(tag);
    if (taken !== id && !(move && taken !== undefined)) this.assertFree(tag);
    if (taken !== id) await this.moveTag(tag, manifest);
    return this.#info(id);
  }

  /** What a branch has written exists: from now on it is a snapshot. Its tag may have been taken meanwhile, by a build. */
  completed(manifest: Manifest, tag: string | null, facts: BranchFacts): void {
    this.#branchFacts.set(manifest.id, facts);
    this.#manifests.set(manifest.id, manifest);
    this.#complete(manifest, tag);
  }

  /**
   * Removes a snapshot with all its tags; with `cascade` also those that stand on it.
   *
   * @throws ApiError snapshot_in_use while something needs one of them
   */
  async remove(ref: string, cascade = false): Promise<RemovalReport> {
    const draft = this.#tags.has(ref) ? undefined : this.drafts.find(ref);
    if (draft?.row.status === 'failed') {
      this.drafts.forget(draft.row.id);
      return { removed: [draft.row.id], freed_bytes: 0, dry_run: false };
    }
    const id = this.resolve(ref);
    const onDisk = (await this.#options.engine.listSnapshots()).includes(id);
    // One whose files were taken away still has its names removed.
    if (!onDisk && this.tagsOf(id).length === 0) throw notFound(ref);
    const descendants = descendantsOf(id, await this.manifests());
    const known = this.#manifests.get(id);
    const ancestors = known ? this.ancestorsOf(known) : [];
    const doomed = cascade ? [...descendants, id] : [id];
    const freed = await this.#options.engine.freedBytes(doomed);
    // From here to the marks of removal nothing is awaited: what was looked at is so.
    const standing = descendantsOf(id, this.#manifests.values()).filter((other) => !doomed.includes(other));
    const users = [...doomed.flatMap((one) => this.#users(one)), ...standing];
    if (users.length > 0) {
      const values = { value: ref, dependents: someOf(users), how: howToFree(users) };
      throw new ApiError('snapshot_in_use', values, { details: { dependents: users } });
    }
    const manifest = await this.#removeAll(doomed);
    const below = manifest ? ancestors : [];
    for (const ancestor of [...below].reverse()) await this.collect(ancestor);
    return { removed: doomed, freed_bytes: freed, dry_run: false };
  }

  /** Removes an untagged snapshot of a template that nothing needs. Such are what rebuilt templates leave; branches wait for `gc`. */
  async collect(id: string): Promise<void> {
    const { log } = this.#options;
    try {
      const manifest = await this.manifests().then((all) => all.find((one) => one.id === id));
      if (manifest === undefined || manifest.branch || !this.#isUnneeded(manifest)) return;
      log.info({ snapshot: id }, 'a snapshot that nothing needs any more is removed');
      await this.#removeAll([id]);
    } catch (error) {
      if (!isGone(error)) log.error({ snapshot: id, err: error }, 'removing a snapshot failed');
    }
  }

  /**
   * Removes all that has no tag and that nothing needs, and disks of setups that no template with a tag is built on; forgets branches that have
   * failed.
   */
  async gc(dryRun: boolean): Promise<RemovalReport> {
    const { engine } = this.#options;
    const found = unneeded(await this.manifests(), (manifest) => !this.#isFree(manifest));
    const freed = await engine.freedBytes(found.map(({ id }) => id));
    const removed: string[] = [];
    for (const manifest of found) {
      // It may have got a use since.
      if (!dryRun && !this.#isUnneeded(manifest)) continue;
      if (!dryRun) await this.#removeAll([manifest.id]);
      removed.push(manifest.id);
    }
    if (!dryRun)
      for (const { row } of this.drafts.all()) if (row.status === 'failed') this.drafts.forget(row.id);
    const templates = [...this.#manifests.values()].filter(
      ({ id, branch }) => !branch && this.tagsOf(id).length > 0,
    );
    const setUps = new Set(templates.flatMap(({ build }) => build.setUp ?? []));
    const { disks, bytes } = await engine.collectSetUps(setUps, dryRun);
    return { removed, setup_disks: disks, freed_bytes: freed + bytes, dry_run: dryRun };
  }

  /** Waits for removals that are under way of what a branch of this sandbox could stand on. */
  async removalsSettled(sandbox: string, snapshotId: string): Promise<void> {
    for (;;) {
      const under = [...this.#removing].filter(
        ([id]) => id === snapshotId || this.#manifests.get(id)?.branch?.sandbox === sandbox,
      );
      if (under.length === 0) return;
      await Promise.allSettled(under.map(([, removal]) => removal));
    }
  }

  /** Whether a snapshot that exists was branched off a sandbox. */
  hasBranchOf(sandbox: string): boolean {
    for (const { branch } of this.#manifests.values()) if (branch?.sandbox === sandbox) return true;
    return false;
  }

  /** Tags that point to a snapshot, in order. */
  tagsOf(id: string): string[] {
    const tags: string[] = [];
    for (const [tag, target] of this.#tags) if (target === id) tags.push(tag);
    return tags.sort();
  }

  #point(tag: string, { id, template, createdAt }: NamedSnapshot): void {
    const name = typeof template === 'string' ? template : template.name;
    this.#options.registry.moveTag(tag, { id, template: name, createdAt });
    this.#tags.set(tag, id);
  }

  /**
   * Names what a branch has written. The registry hears of it when it is durable: until then the journal has it as being written, so that the
   * daemon after a crash of the host names it again, or tells that it has failed.
   */
  #complete(snapshot: NamedSnapshot, tag: string | null): void {
    if (tag !== null && !this.#tags.has(tag)) this.#tags.set(tag, snapshot.id);
    this.#settle(snapshot, tag).catch((error: unknown) => {
      if (this.#removing.has(snapshot.id) || isGone(error)) return;
      this.#manifests.delete(snapshot.id);
      this.#options.log.error(
        { snapshot: snapshot.id, tag, err: error },
        'a branch may not outlive this boot',
      );
    });
  }

  async #settle(snapshot: NamedSnapshot, tag: string | null): Promise<void> {
    await this.#options.engine.durable(snapshot.id);
    if (this.#removing.has(snapshot.id)) return;
    if (tag !== null && this.#tags.get(tag) === snapshot.id) this.#point(tag, snapshot);
    else this.#options.registry.completeDraft(snapshot.id);
  }

  /** Live sandboxes that continue from a snapshot, and branches in the making that may stand on it. */
  #users(id: string): string[] {
    const sandbox = this.#manifests.get(id)?.branch?.sandbox;
    const drafts = this.drafts
      .writing()
      .filter(({ row, manifest }) => manifest?.id === id || row.sandbox === sandbox);
    return [...this.#options.dependents(id), ...drafts.map(({ row }) => row.id)];
  }

  /** Whether nothing but snapshots that stand on it needs it. */
  #isFree({ id }: Manifest): boolean {
    return !this.#removing.has(id) && this.tagsOf(id).length === 0 && this.#users(id).length === 0;
  }

  #isUnneeded(manifest: Manifest): boolean {
    return this.#isFree(manifest) && descendantsOf(manifest.id, this.#manifests.values()).length === 0;
  }

  /** Removes snapshots one after the other; answers the manifest of the last. Marks them before it returns for the first time. */
  async #removeAll(ids: readonly string[]): Promise<Manifest | undefined> {
    const last = this.#manifests.get(ids.at(-1) ?? '');
    let before: Promise<void> = Promise.resolve();
    const removals = ids.map((id) => {
      before = before.then(() => this.#remove(id));
      const removal = before.finally(() => this.#removing.delete(id));
      this.#removing.set(id, removal);
      return removal;
    });
    const results = await Promise.allSettled(removals);
    for (const result of results) if (result.status === 'rejected') throw result.reason;
    return last;
  }

  async #remove(id: string): Promise<void> {
    const { engine, registry } = this.#options;
    // First the names, then the thing: no tag ever points to what is half removed.
    let full: unknown;
    try {
      registry.dropSnapshot(id);
    } catch (error) {
      // A full disk is no reason to refuse what makes room on it.
      if (!(error instanceof ApiError && error.code === 'insufficient_disk')) throw error;
      full = error;
    }
    for (const tag of this.tagsOf(id)) this.#tags.delete(tag);
    await engine.removeSnapshot(id);
    if (full !== undefined) registry.dropSnapshot(id);
    this.#manifests.delete(id);
    this.#branchFacts.delete(id);
  }

  async #info(id: string): Promise<SnapshotInfo> {
    const manifest = await this.manifest(id);
    const problem = await this.#options.engine.incompatibility(manifest);
    return readyInfo(manifest, this.#context(id), problem, this.#branchFacts.get(id));
  }

  #context(id: string): SnapshotContext {
    const { engine, dependents } = this.#options;
    return {
      tags: this.tagsOf(id),
      dir: engine.snapshotDirectory(id),
      sandboxes: dependents(id).length,
      durable: engine.isDurable(id),
    };
  }

  /** Errors name the snapshot as the caller did. */
  async #named<T>(ref: string, call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      if (isGone(error)) throw notFound(ref);
      throw error;
    }
  }
}

function isGone(error: unknown): boolean {
  return error instanceof EngineError && error.code === 'snapshot_not_found';
}

function notFound(ref: string): ApiError {
  return new ApiError('snapshot_not_found', {
    value: /^[A-Za-z0-9_-]{1,64}$/.test(ref) ? ref : quoteValue(ref),
  });
}

/** How what needs a snapshot is removed: the end of the remedy. @param users sandboxes, and snapshots that stand on it or are being written */
function howToFree(users: readonly string[]): string {
  const boxes = users.filter(isSandboxId);
  if (boxes.length === 0) return '; with --cascade, snapshots that stand on it go with it.';
  const first = `: forkd rm ${boxes.slice(0, 5).join(' ')}${boxes.length > 5 ? ' ...' : ''}`;
  return boxes.length === users.length ? first : `${first}; then the snapshots, or use --cascade.`;
}

function someOf(names: readonly string[]): string {
  const shown = names.slice(0, 5).join(', ');
  return names.length > 5 ? `${shown} and ${names.length - 5} more` : shown;
}
