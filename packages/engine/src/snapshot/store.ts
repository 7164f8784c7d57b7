import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Schema from 'typebox/schema';
import { EngineError, messageOf } from '../errors.js';
import { hostBootId } from '../host/boot-id.js';
import { hostFault } from '../host/fault.js';
import { isId } from '../ids.js';
import { type Chain, resolveChain } from './chain.js';
import { DURABLE, Durability, type RecoveryReport } from './durability.js';
import { flatOrigin, writeFlat } from './flat.js';
import { filesOf, Manifest, standsAlone } from './manifest.js';
import { Readings } from './readings.js';
import { copySparse } from './sparse-copy.js';
import { syncDirectory, writeSynced } from './sync.js';

const check = Schema.Compile(Manifest);

/** Files of a snapshot beside its manifest. */
const parts = ['memory', 'state', 'disk'] as const;

/** Prefix of directories that a crash may leave; swept at start. */
const HALF_MADE = '.tmp-';

const MANIFEST = 'manifest.json';

/** A manifest that is to replace another one. */
const NEXT_MANIFEST = 'manifest.next';

/** Longest manifest that is read, bytes. */
const LONGEST_MANIFEST = 16 * 1024 * 1024;

export interface SnapshotDraft extends AsyncDisposable {
  readonly dir: string;
  /** Writes the manifest, and renames the directory: from then on the snapshot exists, as long as this boot of the host. */
  commit(manifest: Manifest): Promise<Manifest>;
}

/** A snapshot that is being made flat. */
interface Flattening {
  done: Promise<Manifest>;
  stop: AbortController;
}

/**
 * Snapshots as directories under `snapshots/`: written under a temporary name, renamed, synced. What one shows never changes afterwards;
 * flattening puts other files in the place of its layer.
 */
export class SnapshotStore {
  readonly #root: string;
  /** Only this store changes a manifest, so one that was read once is kept. */
  readonly #manifests = new Map<string, Manifest>();
  readonly #readings = new Readings();
  readonly #flattenings = new Map<string, Flattening>();
  readonly #listeners = new Set<(manifest: Manifest) => void>();
  readonly #durability: Durability;
  readonly #bootId: string;

  /** @param bootId of this boot of the host */
  constructor(home: string, bootId = hostBootId()) {
    this.#root = join(home, 'snapshots');
    this.#bootId = bootId;
    this.#durability = new Durability({
      root: this.#root,
      directory: (id) => this.directory(id),
      manifest: (id) => this.manifest(id),
      below: async (manifest) => (await this.chain(manifest)).links.slice(0, -1),
    });
  }

  /** Makes the store's directory. */
  async open(): Promise<void> {
    await mkdir(this.#root, { recursive: true, mode: 0o700 });
  }

  directory(id: string): string {
    if (!isId('sn', id)) throw notFound(id);
    return join(this.#root, id);
  }

  async list(): Promise<string[]> {
    return (await readdir(this.#root)).filter((name) => isId('sn', name)).sort();
  }

  /**
   * Writes a snapshot from what a capture left in `workDir`.
   *
   * @param manifest all of it but what is known only once the files are written
   * @param build asked for once they are
   */
  async commit(
    workDir: string,
    manifest: Omit<Manifest, 'files' | 'build'>,
    build: () => Manifest['build'],
    signal?: AbortSignal,
  ): Promise<Manifest> {
    await using draft = await this.draft(manifest.id);
    try {
      const files = {} as Manifest['files'];
      for (const name of parts)
        files[name] = { name, ...(await copySparse(join(workDir, name), join(draft.dir, name), signal)) };
      const committed = await draft.commit({ ...manifest, files, build: build() });
      await this.durable(committed.id);
      return committed;
    } catch (error) {
      await this.remove(manifest.id);
      throw spaceError(error, this.#root);
    }
  }

  /**
   * Syncs a snapshot with what it stands on, so that it outlives a crash of the host. One that is durable costs nothing.
   *
   * @throws EngineError cancelled when it is removed meanwhile, snapshot_not_found, snapshot_corrupt, insufficient_disk
   */
  async durable(id: string): Promise<void> {
    try {
      await this.manifest(id);
      await this.#durability.ensure(id);
    } catch (error) {
      throw spaceError(error, this.#root);
    }
  }

  /** Whether a snapshot, whose manifest was read, is durable. */
  isDurable(id: string): boolean {
    return this.#durability.has(id);
  }

  /** At the start: what is not durable and of another boot of the host is read, and is durable then or has failed. */
  async recover(): Promise<RecoveryReport> {
    const read = (await this.list()).map((id) => this.manifest(id).catch(() => null)); // A damaged one is listed as such.
    const manifests = (await Promise.all(read)).filter((manifest) => manifest !== null);
    return await this.#durability.recover(manifests, this.#bootId);
  }

  /** Waits for what is being synced. */
  async settled(): Promise<void> {
    await this.#durability.settled();
  }

  /** A snapshot in the making: a directory that becomes the snapshot's when it is committed, and is removed when it is not. */
  async draft(id: string): Promise<SnapshotDraft> {
    const dir = join(this.#root, `${HALF_MADE}${id}`);
    await mkdir(dir, { mode: 0o700 });
    return {
      dir,
      commit: async (made) => {
        const manifest = { ...made, bootId: this.#bootId };
        await writeFile(join(dir, MANIFEST), `${JSON.stringify(manifest)}\n`, { flag: 'wx', mode: 0o444 });
        await rename(dir, this.directory(id));
        this.#manifests.set(id, manifest);
        return manifest;
      },
      [Symbol.asyncDispose]: () => rm(dir, { recursive: true, force: true }),
    };
  }

  /** @throws EngineError snapshot_not_found, snapshot_corrupt */
  async manifest(id: string): Promise<Manifest> {
    const problem = this.#durability.problem(id);
    if (problem !== undefined) throw corrupt(id, problem);
    const known = this.#manifests.get(id);
    if (known) return known;
    const text = await this.#readManifest(id);
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (error) {
      throw corrupt(id, `manifest.json is not JSON: ${messageOf(error)}`);
    }
    if (!check.Check(value)) {
      const [, errors] = check.Errors(value);
      const first = errors[0];
      throw corrupt(
        id,
        `manifest.json: ${first?.instancePath ?? ''} ${first?.message ?? 'is not of this format'}`,
      );
    }
    if (value.id !== id) throw corrupt(id, `manifest.json is that of ${value.id}`);
    await this.#durability.look(value);
    this.#manifests.set(id, value);
    return value;
  }

  async #readManifest(id: string): Promise<string> {
    const path = join(this.directory(id), MANIFEST);
    try {
      const facts = await stat(path);
      if (facts.size > LONGEST_MANIFEST) throw corrupt(id, `manifest.json has ${facts.size} bytes`);
      return await readFile(path, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
      const there = await stat(this.directory(id)).catch(() => null);
      throw there ? corrupt(id, 'it has no manifest.json') : notFound(id);
    }
  }

  /** Calls `listener` with the new manifest of each snapshot that was flattened. */
  onFlattened(listener: (manifest: Manifest) => void): void {
    this.#listeners.add(listener);
  }

  /** Keeps the files of these snapshots where they are until it is disposed of. */
  reading(ids: Iterable<string>): Disposable {
    return this.#readings.begin(ids);
  }

  /** The chain of a snapshot as it is now, with its files kept until `pin` is disposed of. Errors as of `chain`. */
  async pinnedChain(id: string): Promise<{ chain: Chain; pin: Disposable }> {
    for (;;) {
      const manifest = await this.manifest(id);
      const chain = await this.chain(manifest);
      const pin = this.reading(chain.links.map((link) => link.id));
      // One of them may have been flattened, or removed, before it was pinned.
      if (chain.links.every((link) => this.#manifests.get(link.id) === link)) return { chain, pin };
      pin[Symbol.dispose]();
    }
  }

  /**
   * Lets a branch stand alone: memory into a new base, disk into a new file, then one exchange of its manifest. Whoever forks it or runs from
   * it sees the same. Two calls at a time share one work. One that stands alone already is left as it is.
   *
   * @throws EngineError snapshot_not_found, snapshot_corrupt, insufficient_disk, cancelled when it is removed meanwhile; it is as before then
   */
  flatten(id: string): Promise<Manifest> {
    const known = this.#flattenings.get(id);
    if (known) return known.done;
    const stop = new AbortController();
    const done = this.#flatten(id, stop.signal).finally(() => this.#flattenings.delete(id));
    this.#flattenings.set(id, { done, stop });
    return done;
  }

  async #flatten(id: string, signal: AbortSignal): Promise<Manifest> {
    // Its device state stays: from then on the mark holds for the new files too, which are synced before they are named.
    await this.#durability.ensure(id);
    const { chain, pin } = await this.pinnedChain(id);
    const dir = this.directory(id);
    const old = chain.links.at(-1)!;
    if (standsAlone(old)) {
      pin[Symbol.dispose]();
      return old;
    }
    try {
      const { memoryBytes, diskBytes, branch } = old;
      const { map, disks } = chain;
      const files = chain.files.map(({ path }) => path);
      const parts = await writeFlat(dir, { memoryBytes, diskBytes, map, files, disks }, signal);
      const origin = flatOrigin(branch!, map, chain.links[0]!, old.files.memory.bytes);
      const next: Manifest = { ...old, branch: origin, files: { ...old.files, ...parts } };
      await this.#exchange(dir, next);
    } catch (error) {
      throw spaceError(error, dir);
    } finally {
      pin[Symbol.dispose]();
    }
    const next = this.#manifests.get(id)!;
    for (const listener of this.#listeners) listener(next);
    await this.#readings.ended(id);
    await tidy(dir, next);
    return next;
  }

  /** Puts a manifest in the place of another one, whose files it does not need. From the rename on the new one holds, whatever crashes. */
  async #exchange(dir: string, next: Manifest): Promise<void> {
    const path = join(dir, NEXT_MANIFEST);
    await rm(path, { force: true });
    await writeSynced(path, `${JSON.stringify(next)}\n`);
    await syncDirectory(dir);
    await rename(path, join(dir, MANIFEST));
    this.#manifests.set(next.id, next);
    await syncDirectory(dir);
  }

  /** All that a snapshot stands on. Errors as of `resolveChain`. */
  async chain(manifest: Manifest): Promise<Chain> {
    return await resolveChain(
      manifest,
      (id) => this.manifest(id),
      (id) => this.directory(id),
    );
  }

  /**
   * Checks what can be checked at every fork: that each file is there, whole, ours and read-only.
   *
   * @throws EngineError snapshot_corrupt
   */
  async inspect(manifest: Manifest): Promise<void> {
    const uid = process.getuid!();
    await Promise.all(
      filesOf(manifest).map(async ({ bytes, name }) => {
        const facts = await stat(join(this.directory(manifest.id), name)).catch(() => null);
        if (!facts?.isFile()) throw corrupt(manifest.id, `its file ${name} is missing`);
        if (facts.size !== bytes)
          throw corrupt(manifest.id, `its file ${name} has ${facts.size} bytes, ${bytes} were written`);
        if (facts.uid !== uid)
          throw corrupt(manifest.id, `its file ${name} belongs to user ${facts.uid}, not ${uid}`);
        if ((facts.mode & 0o222) !== 0)
          throw corrupt(
            manifest.id,
            `its file ${name} is writable (mode ${(facts.mode & 0o777).toString(8)})`,
          );
      }),
    );
  }

  /** Forgets and deletes a snapshot. Children keep the inodes that they map. Fine when it is gone. */
  async remove(id: string): Promise<void> {
    const directory = this.directory(id);
    const flattening = this.#flattenings.get(id);
    flattening?.stop.abort(new EngineError('cancelled', `snapshot ${id} is being removed`));
    await flattening?.done.catch(() => {}); // Told to who asked for it.
    await this.#durability.forget(id);
    this.#manifests.delete(id);
    await this.#readings.ended(id);
    const doomed = join(this.#root, `${HALF_MADE}gone-${id}`);
    await rm(doomed, { recursive: true, force: true });
    const moved = await rename(directory, doomed).then(
      () => true,
      (error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT') return false;
        throw error;
      },
    );
    if (moved) await rm(doomed, { recursive: true, force: true });
  }

  /** Removes what crashes left half made, or half removed. */
  async sweep(): Promise<string[]> {
    const left = (await readdir(this.#root)).filter((name) => name.startsWith(HALF_MADE));
    await Promise.all(left.map((name) => rm(join(this.#root, name), { recursive: true, force: true })));
    for (const id of await this.list()) {
      const manifest = await this.manifest(id).catch(() => null); // A damaged one is left as it is, to be looked at.
      if (manifest) left.push(...(await tidy(this.directory(id), manifest)).map((name) => `${id}/${name}`));
    }
    return left;
  }
}

/** Removes files that a snapshot's manifest does not name: of a flattening that did not end, or that ended just before a crash. */
async function tidy(dir: string, manifest: Manifest): Promise<string[]> {
  const named = new Set([MANIFEST, DURABLE, ...filesOf(manifest).map(({ name }) => name)]);
  const left = (await readdir(dir)).filter((name) => !named.has(name));
  await Promise.all(left.map((name) => rm(join(dir, name), { force: true })));
  return left;
}

function notFound(id: string): EngineError {
  return new EngineError('snapshot_not_found', `there is no snapshot ${id}`, {
    remedy: 'List the snapshots with "forkd snapshot ls".',
  });
}

function corrupt(id: string, problem: string): EngineError {
  return new EngineError('snapshot_corrupt', `snapshot ${id} is damaged: ${problem}`, {
    remedy: 'Build its template again: forkd template build NAME.',
  });
}

/** What was thrown while a snapshot was written under `path`: where the host was at its end, that. */
export function spaceError(error: unknown, path: string): unknown {
  return hostFault(error, 'a snapshot could not be written', path) ?? error;
}
