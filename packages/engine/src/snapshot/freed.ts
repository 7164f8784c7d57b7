/** What removing snapshots would give back to the disk. */
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * Bytes that are allocated for files of these directories alone. Holes do not count; nor do files that another snapshot, or a sandbox that runs,
 * has under a name of its own. Blocks that a file shares with another one by a reflink count: the file system does not tell.
 *
 * @param directories of snapshots; one that is not there counts nothing
 */
export async function freedBytes(directories: readonly string[]): Promise<number> {
  const names = await Promise.all(
    directories.map(async (dir) => (await readdir(dir).catch(() => [])).map((name) => join(dir, name))),
  );
  const facts = await Promise.all(names.flat().map((path) => stat(path).catch(() => null)));
  const files = new Map<string, { bytes: number; links: number }>();
  for (const file of facts) {
    if (file === null) continue; // It went away between the two looks.
    const key = `${file.dev}:${file.ino}`;
    const { links } = files.get(key) ?? { links: file.nlink };
    files.set(key, { bytes: file.blocks * 512, links: links - 1 });
  }
  return [...files.values()].reduce((sum, { bytes, links }) => sum + (links > 0 ? 0 : bytes), 0);
}
