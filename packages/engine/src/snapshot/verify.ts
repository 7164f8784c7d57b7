import { open, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { messageOf } from '../errors.js';
import type { SnapshotSizes } from '../types.js';
import { filesOf, type Manifest } from './manifest.js';
import { CHUNK_BYTES, hashChunk, readFully } from './sparse-copy.js';

/**
 * Reads every byte of a snapshot against the hashes of its manifest.
 *
 * @returns what is wrong, for people; nothing when all is right
 */
export async function verifySnapshot(
  directory: string,
  manifest: Manifest,
  signal?: AbortSignal,
): Promise<{ problems: string[]; bytesRead: number }> {
  const problems: string[] = [];
  let bytesRead = 0;
  for (const entry of filesOf(manifest)) {
    const found = await verifyFile(join(directory, entry.name), entry, signal);
    bytesRead += found.bytesRead;
    problems.push(...found.problems.map((problem) => `${entry.name}: ${problem}`));
  }
  return { problems, bytesRead };
}

async function verifyFile(
  path: string,
  entry: { bytes: number; chunks: readonly string[] },
  signal?: AbortSignal,
): Promise<{ problems: string[]; bytesRead: number }> {
  let file: Awaited<ReturnType<typeof open>>;
  try {
    file = await open(path, 'r');
  } catch (error) {
    return { problems: [messageOf(error)], bytesRead: 0 };
  }
  const problems: string[] = [];
  let at = 0;
  try {
    const { size } = await file.stat();
    if (size !== entry.bytes) problems.push(`has ${size} bytes, ${entry.bytes} were written`);
    const buffer = Buffer.allocUnsafeSlow(Math.min(CHUNK_BYTES, size));
    for (const [index, hash] of entry.chunks.entries()) {
      signal?.throwIfAborted();
      const chunk = buffer.subarray(0, Math.min(CHUNK_BYTES, Math.min(size, entry.bytes) - at));
      if (chunk.length === 0) break;
      await readFully(file, chunk, at);
      if ((await hashChunk(chunk)) !== hash)
        problems.push(`bytes ${at} to ${at + chunk.length} (chunk ${index}) were altered`);
      at += chunk.length;
    }
  } finally {
    await file.close();
  }
  return { problems, bytesRead: at };
}

/** What a snapshot takes: logical sizes, and bytes allocated on disk, where holes do not count. */
export async function snapshotSizes(directory: string, manifest: Manifest): Promise<SnapshotSizes> {
  const allocated = async (name: string): Promise<number> => (await stat(join(directory, name))).blocks * 512;
  const { memory, disk } = manifest.files;
  const disks = [disk, ...(manifest.branch?.lowerDisks ?? [])];
  const [memoryPhysical, ...allocatedDisks] = await Promise.all(
    [memory, ...disks].map((entry) => allocated(entry.name)),
  );
  return {
    memoryLogical: manifest.memoryBytes,
    memoryPhysical: memoryPhysical!,
    state: manifest.files.state.bytes,
    diskPhysical: allocatedDisks.reduce((sum, bytes) => sum + bytes, 0),
    image: manifest.image.bytes,
  };
}
