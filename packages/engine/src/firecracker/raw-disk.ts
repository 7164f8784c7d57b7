import { constants, copyFile, mkdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError } from '../errors.js';
import type { FrozenDisk, PreparedDisk, VmmDisks } from '../vmm/types.js';
import { fcFiles } from './files.js';

const MiB = 1024 * 1024;

/** What may be copied of a disk in a pause that is to be short, bytes: some 50 ms where 1.3 GB are copied in a second. */
export const LIVE_COPY_BYTES = 64 * MiB;

/** What may be copied in any pause, bytes: well within its deadline of 10 s. */
export const MOST_COPY_BYTES = 4096 * MiB;

/** Name in a snapshot's directory. */
const DISK = 'disk';

/**
 * The disk of a sandbox: one raw file that Firecracker writes to all the time. A branch has a copy of it, made in the pause: of its blocks'
 * list alone where the file system shares blocks, else of its data.
 */
export class RawDisk implements VmmDisks {
  readonly #vmm: { readonly dir: string };
  /** Whether its file system shares blocks between files. */
  #shares: boolean | undefined;

  readonly #limits: { live: number; most: number };

  /** @param limits bytes that may be copied in the pause of a live branch, and in any */
  constructor(vmm: { readonly dir: string }, limits = { live: LIVE_COPY_BYTES, most: MOST_COPY_BYTES }) {
    this.#vmm = vmm;
    this.#limits = limits;
  }

  async whySlow(dir: string): Promise<string | undefined> {
    const bytes = await this.#copied(dir);
    if (bytes <= this.#limits.live) return undefined;
    return `the disk has ${inMiB(bytes)} MiB, which are copied in the pause since the file system does not share blocks between files; live is for at most ${inMiB(this.#limits.live)} MiB`;
  }

  /** @throws EngineError unsupported when there is more to copy than a pause may take */
  async prepare(_bytes: number, dir: string): Promise<PreparedDisk> {
    const bytes = await this.#copied(dir);
    if (bytes > this.#limits.most)
      throw new EngineError(
        'unsupported',
        `the disk has ${inMiB(bytes)} MiB; at most ${inMiB(this.#limits.most)} MiB are copied in the pause of a branch`,
        {
          remedy:
            'Put the state directory on a file system that shares blocks between files (XFS, Btrfs), or build the template for qemu.',
        },
      );
    // What a save without memory names as its memory.
    await mkdir(join(this.#vmm.dir, fcFiles.noMemory), { recursive: true, mode: 0o700 });
    return { below: fcFiles.disk, node: join(dir, DISK) };
  }

  switched(): Promise<void> {
    return Promise.resolve();
  }

  unknown(): void {
    // It is where it was.
  }

  /** The pause has put it there. */
  collect(): Promise<FrozenDisk[]> {
    return Promise.resolve([{ name: DISK, whole: true }]);
  }

  /** It stands on nothing. */
  standOn(): Promise<void> {
    return Promise.resolve();
  }

  gather(): Promise<void> {
    return Promise.resolve();
  }

  /** Bytes that a copy has to move: none where blocks are shared. */
  async #copied(dir: string): Promise<number> {
    const path = join(this.#vmm.dir, fcFiles.disk);
    if (this.#shares !== false) this.#shares = await sharesBlocks(path, join(dir, 'probe'));
    return this.#shares ? 0 : (await stat(path)).blocks * 512;
  }
}

/** Tries it; which writes the file back, so that nothing of that is left for the pause. */
async function sharesBlocks(path: string, probe: string): Promise<boolean> {
  try {
    await copyFile(path, probe, constants.COPYFILE_FICLONE_FORCE | constants.COPYFILE_EXCL);
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (
      code === 'ENOTSUP' ||
      code === 'EOPNOTSUPP' ||
      code === 'ENOTTY' ||
      code === 'EXDEV' ||
      code === 'EINVAL' ||
      code === 'ENOSYS'
    )
      return false;
    throw error;
  } finally {
    await rm(probe, { force: true });
  }
}

function inMiB(bytes: number): number {
  return Math.ceil(bytes / MiB);
}
