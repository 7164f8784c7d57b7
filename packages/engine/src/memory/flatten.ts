import { type FileHandle, open } from 'node:fs/promises';
import type { MergedExtent } from './extents.js';

/** Bytes copied at a time; also the grain at which zeros become holes. */
const STEP = 1024 * 1024;
const GRAIN = 4096;

export interface FlattenOptions {
  signal?: AbortSignal;
  /** What lies past the end of a file is zero: so with disks that QEMU allocates by the cluster. */
  padded?: boolean;
}

/**
 * Writes what a base and its layers show into one new base; zero pages become holes. The target is fsynced, not renamed: it is the
 * caller's temporary file until then. All files are open before the first is read: they may be unlinked meanwhile.
 *
 * @param map merged map of a snapshot's memory, or of its disk
 * @param files its files, base first, absolute paths
 * @param target path of a file that does not exist yet
 * @param bytes size of guest RAM, or of the disk
 * @returns bytes written, holes left out
 * @throws Error when a file is shorter than its extents say, or on any I/O failure; the target may then be incomplete
 */
export async function flattenMemory(
  map: readonly MergedExtent[],
  files: readonly string[],
  target: string,
  bytes: number,
  { signal, padded = false }: FlattenOptions = {},
): Promise<number> {
  const sources: FileHandle[] = [];
  try {
    for (const file of files) sources.push(await open(file, 'r'));
    await using out = await open(target, 'wx', 0o600);
    await out.truncate(bytes);
    const buffer = Buffer.alloc(STEP);
    let written = 0;
    for (const extent of map) {
      if (extent.kind === 'zero') continue;
      for (let done = 0; done < extent.length; done += STEP) {
        signal?.throwIfAborted();
        const chunk = buffer.subarray(0, Math.min(STEP, extent.length - done));
        await readExactly(
          sources[extent.file]!,
          files[extent.file]!,
          chunk,
          extent.fileOffset + done,
          padded,
        );
        written += await writeWithoutZeros(out, chunk, extent.guestOffset + done);
      }
    }
    await out.sync();
    return written;
  } finally {
    await Promise.all(sources.map((source) => source.close()));
  }
}

async function readExactly(
  source: FileHandle,
  name: string,
  chunk: Buffer,
  position: number,
  padded: boolean,
): Promise<void> {
  for (let done = 0; done < chunk.length; ) {
    const { bytesRead } = await source.read(chunk, done, chunk.length - done, position + done);
    if (bytesRead === 0 && padded) {
      chunk.fill(0, done);
      return;
    }
    if (bytesRead === 0)
      throw new Error(`${name} ends at byte ${position + done}, its extents need ${position + chunk.length}`);
    done += bytesRead;
  }
}

async function writeWithoutZeros(out: FileHandle, chunk: Buffer, position: number): Promise<number> {
  let written = 0;
  for (let start = 0; start < chunk.length; ) {
    if (isZero(chunk, start)) {
      start += GRAIN;
      continue;
    }
    let end = start + GRAIN;
    while (end < chunk.length && !isZero(chunk, end)) end += GRAIN;
    await writeExactly(out, chunk.subarray(start, end), position + start);
    written += end - start;
    start = end;
  }
  return written;
}

async function writeExactly(out: FileHandle, bytes: Buffer, position: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await out.write(bytes, done, bytes.length - done, position + done);
    done += bytesWritten;
  }
}

const ZERO = Buffer.alloc(GRAIN);
function isZero(chunk: Buffer, start: number): boolean {
  return chunk.compare(ZERO, 0, Math.min(GRAIN, chunk.length - start), start, start + GRAIN) === 0;
}
