/**
 * Disks on which a template's files and `setup` are done, kept by the digest of all that went into them: a change of the warm-up alone starts from
 * there. One exists whole or not at all: it is synced under another name, then renamed.
 */
import { mkdir, readdir, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { publish, scratchIn, sweepScratch } from '../guest/cache.js';
import { copyDisk } from '../guest/disk.js';
import { sha256 } from '../hash.js';
import { canonicalJson, type DigestInputs } from './digest.js';

/** Changes whenever the same setup would leave another disk. */
const FORMAT = 1;

/** Most disks that are kept, and most bytes that they may have allocated in all; those that were used least lately go first. */
const MOST = 16;
const MOST_BYTES = 8 * 1024 ** 3;

const SUFFIX = '.disk';

/** What a setup's disk depends on: the image, the machine, the files, the commands and what they see. Not what is warmed up afterwards. */
export function setUpDigest({ spec, files, kernel, initramfs, image, pin }: DigestInputs): string {
  const { files: placed, setup, env, memoryBytes, vcpus, diskBytes } = spec;
  const own = { placed, setup, env, memoryBytes, vcpus, diskBytes };
  return sha256(canonicalJson({ format: FORMAT, own, files, kernel, initramfs, image, pin }));
}

/** The disks of one state directory. */
export class SetUpDisks {
  readonly #dir: string;

  constructor(home: string) {
    this.#dir = join(home, setUpDisksIn);
  }

  /** The disk of a digest, marked as used; null when there is none, or not of that size. */
  async find(digest: string, bytes: number): Promise<string | null> {
    const path = this.#path(digest);
    const facts = await stat(path).catch(() => null);
    if (!facts?.isFile() || facts.size !== bytes || facts.uid !== process.getuid!()) return null;
    const now = new Date();
    await utimes(path, now, now);
    return path;
  }

  /** Keeps a copy of a disk that nobody writes to any more, in the place of an older one. Returns its path. */
  async keep(digest: string, disk: string, signal?: AbortSignal): Promise<string> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    await sweepScratch(this.#dir);
    await using scratch = await scratchIn(this.#dir);
    const copy = join(scratch.dir, 'disk');
    await copyDisk(disk, copy, signal);
    const path = await publish(copy, this.#dir, `${digest}${SUFFIX}`);
    await this.#prune(path);
    return path;
  }

  /** Removes what is beyond the bounds, but never `newest`. Whoever copies one keeps its inode. */
  async #prune(newest: string): Promise<void> {
    const names = (await readdir(this.#dir)).filter((name) => name.endsWith(SUFFIX));
    const disks = await Promise.all(
      names.map(async (name) => {
        const path = join(this.#dir, name);
        const facts = await stat(path).catch(() => null); // Another build may prune as well.
        return { path, used: facts?.mtimeMs ?? 0, bytes: (facts?.blocks ?? 0) * 512 };
      }),
    );
    disks.sort((a, b) => Number(b.path === newest) - Number(a.path === newest) || b.used - a.used);
    let bytes = 0;
    for (const [index, disk] of disks.entries()) {
      bytes += disk.bytes;
      if (index > 0 && (index >= MOST || bytes > MOST_BYTES)) await rm(disk.path, { force: true });
    }
  }

  #path(digest: string): string {
    return join(this.#dir, `${digest}${SUFFIX}`);
  }
}

/** Where they are, in the state directory. */
export const setUpDisksIn = 'cache/setups';
