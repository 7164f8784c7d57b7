/** File systems without room. */
import { spawnSync } from 'node:child_process';
import { closeSync, fstatSync, ftruncateSync, openSync, rmSync, statfsSync, writeSync } from 'node:fs';
import { join } from 'node:path';

/** Bytes that are free on the file system of a path, for anyone. */
export function room(path: string): number {
  const { bavail, bsize } = statfsSync(path);
  return bavail * bsize;
}

/** Makes the disk full, but for so many bytes; dispose of it to have the room back. */
export function fill(path: string, butBytes = 0): Disposable {
  const file = join(path, 'filler');
  // What is set aside at once is not written; the rest, to the last byte, is.
  spawnSync('fallocate', ['--length', String(room(path)), file]);
  const fd = openSync(file, 'a');
  const chunk = Buffer.alloc(1 << 20, 1);
  try {
    for (let size = chunk.length; size >= 512; size /= 2) {
      try {
        for (;;) writeSync(fd, chunk, 0, size);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
      }
    }
    if (butBytes > 0) shorten(file, Math.max(0, fstatSync(fd).size - butBytes));
  } finally {
    closeSync(fd);
  }
  return { [Symbol.dispose]: () => rmSync(file, { force: true }) };
}

function shorten(file: string, bytes: number): void {
  const fd = openSync(file, 'r+');
  ftruncateSync(fd, bytes);
  closeSync(fd);
}
