import { mkdir, open, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import Schema from 'typebox/schema';
import { EngineError, messageOf } from '../errors.js';
import { hostFault } from '../host/fault.js';
import { isId } from '../ids.js';
import { type Chain, resolveChain } from './chain.js';
import { filesOf, Manifest } from './manifest.js';
import { copySparse } from './sparse-copy.js';

const check = Schema.Compile(Manifest);

/** Files of a snapshot beside its manifest. */
const parts = ['memory', 'state', 'disk'] as const;

/** Prefix of directories that a crash may leave; swept at start. */
const HALF_MADE = '.tmp-';

/** Longest manifest that is read, bytes. */
const LONGEST_MANIFEST = 16 * 1024 * 1024;

export interface SnapshotDraft extends AsyncDisposable {
  readonly dir: string;
  /** Writes the manifest, syncs, and renames the directory: from then on the snapshot exists. */
  commit(manifest: Manifest): Promise<Manifest>;
}

/** Snapshots as directories under `snapshots/`: written under a temporary name, synced, renamed; never changed afterwards. */
export class SnapshotStore {
  readonly #root: string;
  /** A manifest never changes, so one that was read once is kept. */
  readonly #manifests = new Map<string, Manifest>();

  constructor(home: string) {
    this.#root = join(home, 'snapshots');
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
      return await draft.commit({ ...manifest, files, build: build() });
    } catch (error) {
      throw spaceError(error, this.#root);
    }
  }

  /** A snapshot in the making: a directory that becomes the snapshot's when it is committed, and is removed when it is not. */
  async draft(id: string): Promise<SnapshotDraft> {
    const dir = join(this.#root, `${HALF_MADE}${id}`);
    await mkdir(dir, { mode: 0o700 });
    return {
      dir,
      commit: async (manifest) => {
        await writeSynced(join(dir, 'manifest.json'), `${JSON.stringify(manifest)}\n`);
        await syncDirectory(dir);
        await rename(dir, this.directory(id));
        await syncDirectory(this.#root);
        this.#manifests.set(id, manifest);
        return manifest;
      },
      [Symbol.asyncDispose]: () => rm(dir, { recursive: true, force: true }),
    };
  }

  /** @throws EngineError snapshot_not_found, snapshot_corrupt */
  async manifest(id: string): Promise<Manifest> {
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
    this.#manifests.set(id, value);
    return value;
  }

  async #readManifest(id: string): Promise<string> {
    const path = join(this.directory(id), 'manifest.json');
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
    this.#manifests.delete(id);
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
    return left;
  }
}

async function writeSynced(path: string, text: string): Promise<void> {
  const handle = await open(path, 'wx', 0o444);
  try {
    await handle.writeFile(text);
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function syncDirectory(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
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
