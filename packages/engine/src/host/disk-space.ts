import { statfs } from 'node:fs/promises';
import { messageOf } from '../errors.js';
import { hostFault } from './fault.js';

/** A file system with less room than this is full: what a write has found none of may be a few blocks, bytes. */
const FULL_BYTES = 1024 * 1024;

/** What can still be written to the file system of `path`, bytes. */
export async function freeBytes(path: string): Promise<number> {
  const { bavail, bsize } = await statfs(path);
  return bavail * bsize;
}

/** The free bytes of a file system that is full; null for one that is not, or cannot be asked. */
export async function fullDisk(path: string): Promise<number | null> {
  const free = await freeBytes(path).catch(() => null);
  return free !== null && free < FULL_BYTES ? free : null;
}

/**
 * What failed, for a program that writes to `path` and does not say why it could not: where the disk is full, that.
 *
 * @param what what failed: "the device state could not be saved"
 */
export async function writeFault(error: unknown, what: string, path: string): Promise<unknown> {
  const known = hostFault(error, what, path);
  if (known || (await fullDisk(path)) === null) return known ?? error;
  return hostFault(
    Object.assign(new Error(messageOf(error), { cause: error }), { code: 'ENOSPC' }),
    what,
    path,
  );
}
