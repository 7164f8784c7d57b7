/**
 * Sets of packages of a language: fetched on the host, locked, installed without network, and kept as a tar of what they add to an
 * image.
 */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { sha256 } from '../../hash.js';
import { matchesStamp, publish, readJson, type Stamp, scratchIn, stampOf, writeJson } from '../cache.js';
import type { GuestContext } from '../kernel.js';
import { run } from '../run.js';

/** A package as it was fetched. */
export interface LockedPackage {
  name: string;
  version: string;
  /** Of the archive that came from the registry: algorithm, and hex (`sha256:`) or base64 (`sha512-`) digits. */
  hash: string;
}

export interface PackageSet {
  manager: 'pip' | 'npm';
  /** Tar of what it adds to the root of an image. */
  path: string;
  sha256: string;
  lock: LockedPackage[];
  cached: boolean;
}

export interface SetOptions extends GuestContext {
  /** Fetch anew, so that ranges are resolved again. */
  noCache?: boolean;
}

interface SetRecord {
  name: string;
  inputs: unknown;
  lock: LockedPackage[];
  stamp: Stamp;
}

/** How a set is made. */
export interface SetMaker {
  manager: 'pip' | 'npm';
  /** All that its content depends on, except what the registry answers. */
  inputs: unknown;
  /** Puts into `root` what is added to an image. `scratch` is a directory for whatever else. */
  make(root: string, scratch: string): Promise<LockedPackage[]>;
}

/** Provides a set: from the cache where it was made before, whatever the registry has had since. */
export async function ensureSet(maker: SetMaker, options: SetOptions): Promise<PackageSet> {
  const { manager, inputs } = maker;
  const parent = join(options.home, 'cache', manager);
  const recordPath = join(parent, `${sha256(JSON.stringify(inputs))}.json`);
  const known = options.noCache ? null : await readJson<SetRecord>(recordPath);
  const made = (record: SetRecord, cached: boolean): PackageSet => ({
    manager,
    path: join(parent, record.name),
    sha256: record.stamp.sha256,
    lock: record.lock,
    cached,
  });
  if (known && (await matchesStamp(join(parent, known.name), known.stamp))) return made(known, true);
  await using scratch = await scratchIn(parent);
  const root = join(scratch.dir, 'root');
  await mkdir(root, { mode: 0o755 });
  const lock = (await maker.make(root, scratch.dir)).sort((a, b) => (a.name < b.name ? -1 : 1));
  const tar = join(scratch.dir, 'set.tar');
  // Whatever the umask of this process, all users of a sandbox may read it.
  const owners = ['--owner=0', '--group=0', '--numeric-owner', '--mode=u+rwX,go+rX,go-w', '--sort=name'];
  await run('tar', ['-C', root, ...owners, '-cf', tar, '.'], { signal: options.signal, timeoutMs: 300_000 });
  const stamp = await stampOf(tar);
  const record: SetRecord = { name: `${stamp.sha256}.tar`, inputs, lock, stamp };
  await publish(tar, parent, record.name);
  await writeJson(recordPath, record);
  return made(record, false);
}
