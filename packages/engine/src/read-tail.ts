import { constants } from 'node:fs';
import { open } from 'node:fs/promises';

/** Bytes that `readTail` returns at most. */
const TAIL_BYTES = 65_536;

/**
 * The end of a log that an untrusted process may have written: never follows a link, never reads what is not a file.
 *
 * @returns text of at most 64 KiB; empty when there is no such file
 */
export async function readTail(path: string): Promise<string> {
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const handle = await open(path, flags).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ELOOP') return null;
    throw error;
  });
  if (!handle) return '';
  try {
    const facts = await handle.stat();
    if (!facts.isFile()) return '';
    const length = Math.min(facts.size, TAIL_BYTES);
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(length), 0, length, facts.size - length);
    return buffer.toString('utf8', 0, bytesRead);
  } finally {
    await handle.close();
  }
}
