import { webcrypto } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import { PAGE } from '../memory/index.js';

/** Bytes that one hash of a manifest covers. */
export const CHUNK_BYTES = 4 * 1024 * 1024;

const ZERO_PAGE = Buffer.alloc(PAGE);
const ZERO_CHUNK = Buffer.alloc(CHUNK_BYTES);

/**
 * Copies a file, its zero pages as holes, and hashes it by the chunk. The copy is synced, mode 0444, and an inode that nobody
 * has had open for writing but us.
 *
 * @param to must not exist
 * @returns SHA-256 of each chunk; the empty string for a chunk of zeros
 */
export async function copySparse(
  from: string,
  to: string,
  signal?: AbortSignal,
): Promise<{ bytes: number; chunks: string[] }> {
  const source = await open(from, 'r');
  try {
    const target = await open(to, 'wx', 0o400);
    try {
      const { size } = await source.stat();
      const chunks = await copyChunks(source, target, size, signal);
      await target.truncate(size);
      await target.chmod(0o444);
      await target.sync();
      return { bytes: size, chunks };
    } finally {
      await target.close();
    }
  } finally {
    await source.close();
  }
}

async function copyChunks(
  source: FileHandle,
  target: FileHandle,
  size: number,
  signal?: AbortSignal,
): Promise<string[]> {
  const buffer = Buffer.alloc(CHUNK_BYTES);
  const chunks: string[] = [];
  for (let at = 0; at < size; at += CHUNK_BYTES) {
    signal?.throwIfAborted();
    const chunk = buffer.subarray(0, Math.min(CHUNK_BYTES, size - at));
    await readFully(source, chunk, at);
    const hash = await hashChunk(chunk);
    chunks.push(hash);
    if (hash !== '') await writePages(target, chunk, at);
  }
  return chunks;
}

/** The hash of a chunk as manifests have it, made in a thread of Node's own: the daemon answers others meanwhile. The chunk must not change until then. */
export async function hashChunk(chunk: Buffer): Promise<string> {
  if (chunk.equals(ZERO_CHUNK.subarray(0, chunk.length))) return '';
  return Buffer.from(await webcrypto.subtle.digest('SHA-256', chunk)).toString('hex');
}

/** Fills `buffer` from the file; a file that ends early is an error. */
export async function readFully(file: FileHandle, buffer: Buffer, at: number): Promise<void> {
  let done = 0;
  while (done < buffer.length) {
    const { bytesRead } = await file.read(buffer, done, buffer.length - done, at + done);
    if (bytesRead === 0) throw new Error(`the file ends at byte ${at + done}, before its recorded size`);
    done += bytesRead;
  }
}

/** Writes the runs of pages that are not zero. */
async function writePages(target: FileHandle, chunk: Buffer, at: number): Promise<void> {
  let start = -1;
  for (let page = 0; page < chunk.length; page += PAGE) {
    const end = Math.min(page + PAGE, chunk.length);
    const zero = chunk.subarray(page, end).equals(ZERO_PAGE.subarray(0, end - page));
    if (!zero && start < 0) start = page;
    if (zero && start >= 0) {
      await writeFully(target, chunk.subarray(start, page), at + start);
      start = -1;
    }
  }
  if (start >= 0) await writeFully(target, chunk.subarray(start), at + start);
}

async function writeFully(target: FileHandle, bytes: Buffer, at: number): Promise<void> {
  let done = 0;
  while (done < bytes.length) {
    const { bytesWritten } = await target.write(bytes, done, bytes.length - done, at + done);
    done += bytesWritten;
  }
}
