import { open } from 'node:fs/promises';
import type { Manifest } from './manifest.js';
import { CHUNK_BYTES, hashChunk, readFully } from './sparse-copy.js';

/** Chunks of a file that are hashed at a time. */
const READERS = 2;

/**
 * Makes a file part of a snapshot: ours, read-only, and hashed by the chunk.
 *
 * @param path the file, in the snapshot's temporary directory
 * @param name its name there
 */
export async function sealPart(
  path: string,
  name: string,
  signal?: AbortSignal,
): Promise<Manifest['files']['memory']> {
  await using file = await open(path, 'r');
  await file.chown(process.getuid!(), process.getgid!());
  await file.chmod(0o444);
  const { size } = await file.stat();
  const chunks: string[] = new Array(Math.ceil(size / CHUNK_BYTES));
  let next = 0;
  const reader = async (): Promise<void> => {
    // Zeroing 4 MiB for each of a chain of small files took most of a branch's time.
    const buffer = Buffer.allocUnsafeSlow(Math.min(CHUNK_BYTES, size));
    for (let index = next++; index < chunks.length; index = next++) {
      signal?.throwIfAborted();
      const at = index * CHUNK_BYTES;
      const chunk = buffer.subarray(0, Math.min(CHUNK_BYTES, size - at));
      await readFully(file, chunk, at);
      chunks[index] = await hashChunk(chunk);
    }
  };
  await Promise.all(Array.from({ length: Math.min(READERS, chunks.length) }, reader));
  return { name, bytes: size, chunks };
}
