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

/** A disk that is kept. */
export interface KeptDisk {
  digest: string;
  /** Allocated for it alone. */
  bytes: number;
  /** Milliseconds since 1970. */
  used: number;
}

/** The disks of one state directory: one object for all builds of a process, which it knows apart from those that only lie there. */
export class SetUpDisks {
  readonly #dir: string;
  /** Builds that use a disk, by its digest. */
  readonly #builds = new Map<string, number>();

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
    using _use = this.use(digest);
    await this.#prune();
    return path;
  }

  /** A build uses the disk of a digest, or makes it, until that is disposed of: it is not removed meanwhile. */
  use(digest: string): Disposable {
    this.#builds.set(digest, (this.#builds.get(digest) ?? 0) + 1);
    return {
      [Symbol.dispose]: () => {
        const left = (this.#builds.get(digest) ?? 1) - 1;
        if (left > 0) this.#builds.set(digest, left);
        else this.#builds.delete(digest);
      },
    };
  }

  /** Disks but those of these digests, and those that a build uses now. */
  async unused(needed: ReadonlySet<string>): Promise<KeptDisk[]> {
    return (await this.#all()).filter(({ digest }) => !needed.has(digest) && !this.#builds.has(digest));
  }

  /** Removes one, unless a build has begun to use it. Tells whether it did. */
  async remove(digest: string): Promise<boolean> {
    if (this.#builds.has(digest)) return false;
    await rm(this.#path(digest), { force: true });
    return true;
  }

  async #all(): Promise<KeptDisk[]> {
    const names = (await readdir(this.#dir).catch(() => [])).filter((name) => name.endsWith(SUFFIX));
    const disks = names.map(async (name) => {
      const facts = await stat(join(this.#dir, name)).catch(() => null); // Somebody removed it.
      const digest = name.slice(0, -SUFFIX.length);
      return facts && { digest, used: facts.mtimeMs, bytes: facts.nlink > 1 ? 0 : facts.blocks * 512 };
    });
    return (await Promise.all(disks)).filter((disk) => disk !== null);
  }

  /** Removes what is beyond the bounds, but never what a build uses. */
  async #prune(): Promise<void> {
    const disks = await this.#all();
    const inUse = ({ digest }: KeptDisk) => Number(this.#builds.has(digest));
    disks.sort((a, b) => inUse(b) - inUse(a) || b.used - a.used);
    let bytes = 0;
    for (const [index, disk] of disks.entries()) {
      bytes += disk.bytes;
      if (index >= MOST || bytes > MOST_BYTES) await this.remove(disk.digest);
    }
  }

  #path(digest: string): string {
    return join(this.#dir, `${digest}${SUFFIX}`);
  }
}

/** Where they are, in the state directory. */
export const setUpDisksIn = 'cache/setups';
