import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { EngineError } from '../errors.js';

/** Device state that a VMM may write, bytes; 13 KB is usual. */
const MOST_STATE = 64 * 1024 * 1024;

/** Reads the device state that the VMM wrote: a regular file of sane size, whatever else it may have put there. */
export async function readState(path: string): Promise<Buffer> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const facts = await file.stat();
  if (!facts.isFile() || facts.size === 0 || facts.size > MOST_STATE)
    throw new EngineError('vmm_failed', `the VMM saved a device state of ${facts.size} bytes`);
  return await file.readFile();
}

/** Writes it to where there is none yet. */
export async function writeState(path: string, state: Buffer): Promise<void> {
  await using file = await open(path, 'wx', 0o400);
  await file.writeFile(state);
}
