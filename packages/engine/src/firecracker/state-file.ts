import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { EngineError } from '../errors.js';
import { crc64 } from './crc64.js';

/** Largest state that Firecracker itself would read, bytes. */
const MOST_STATE = 100_000_000;

/**
 * Checks that a state file is whole: of sane size, and true to the checksum at its end.
 *
 * @throws EngineError vmm_failed
 */
export async function assertWholeState(path: string): Promise<void> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const facts = await file.stat();
  if (!facts.isFile() || facts.size <= 8 || facts.size > MOST_STATE)
    throw new EngineError('vmm_failed', `Firecracker saved a device state of ${facts.size} bytes`);
  if (crc64(await file.readFile()) !== 0n)
    throw new EngineError(
      'vmm_failed',
      'the device state that Firecracker saved does not match its checksum',
    );
}
