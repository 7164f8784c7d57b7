/** Empty disks: ext4 in a sparse file, made once for each size. */
import { constants, copyFile, open, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError } from '../errors.js';
import { publish, scratchIn } from './cache.js';
import { outputOf, RunError, run } from './run.js';

/** Changes whenever the options below do, so that disks of an older forkd are not taken. */
const FORMAT = 1;

/**
 * Options of the file system: journal kept, since a child must survive a hard stop of its VMM; inode tables written at once
 * (as holes: the file is empty), or the kernel of every child would go on to write them; no blocks kept for root.
 */
const OPTIONS = ['-q', '-F', '-t', 'ext4', '-L', 'forkd', '-m', '0', '-b', '4096', '-J', 'size=16'];
const EXTENDED = 'lazy_itable_init=0,lazy_journal_init=0,nodiscard';

export interface DiskOptions {
  home: string;
  /** A multiple of 1 MiB, at least 64 MiB. */
  bytes: number;
  signal?: AbortSignal | undefined;
}

/**
 * Provides an empty disk of a size, from the cache where it is there. Read-only: copy it with `copyDisk`.
 *
 * @throws EngineError `host_unfit` without mke2fs, `engine_error`
 */
export async function ensureDisk(options: DiskOptions): Promise<{ path: string; cached: boolean }> {
  const parent = join(options.home, 'cache/disks');
  const name = `ext4-${FORMAT}-${options.bytes}.img`;
  const path = join(parent, name);
  if ((await stat(path).catch(() => null))?.size === options.bytes) return { path, cached: true };
  await using scratch = await scratchIn(parent);
  const made = join(scratch.dir, 'made');
  const file = join(scratch.dir, 'disk');
  {
    await using handle = await open(made, 'wx', 0o600);
    await handle.truncate(options.bytes);
  }
  try {
    await run('mke2fs', [...OPTIONS, '-E', EXTENDED, made], { signal: options.signal, timeoutMs: 120_000 });
    // Zeros that mke2fs wrote become holes again.
    await sparseCopy(made, file, options.signal);
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    const missing = error.kind === 'missing';
    throw new EngineError(missing ? 'host_unfit' : 'engine_error', `cannot make a disk: ${error.message}`, {
      ...(missing && { remedy: 'apt-get install e2fsprogs' }),
      details: { output: outputOf(error) },
      cause: error,
    });
  }
  {
    await using handle = await open(file, 'r');
    await handle.chmod(0o444);
  }
  return { path: await publish(file, parent, name), cached: false };
}

/** Copies a disk: shared blocks where the file system can, else without its holes. The copy is writable by its owner. */
export async function copyDisk(from: string, to: string, signal?: AbortSignal): Promise<void> {
  try {
    await copyFile(from, to, constants.COPYFILE_FICLONE_FORCE | constants.COPYFILE_EXCL);
  } catch {
    await sparseCopy(from, to, signal);
  }
  await using handle = await open(to, 'r');
  await handle.chmod(0o600);
}

async function sparseCopy(from: string, to: string, signal?: AbortSignal): Promise<void> {
  await run('cp', ['--sparse=always', '--', from, to], { signal, timeoutMs: 300_000 });
}
