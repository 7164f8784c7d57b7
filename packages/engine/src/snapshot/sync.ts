import { open } from 'node:fs/promises';

/** Writes a read-only file that does not exist yet, and syncs it. */
export async function writeSynced(path: string, text: string): Promise<void> {
  await using file = await open(path, 'wx', 0o444);
  await file.writeFile(text);
  await file.sync();
}

/** Syncs what a file holds. */
export async function syncFile(path: string): Promise<void> {
  await using file = await open(path, 'r');
  await file.sync();
}

/** Syncs the names in a directory. */
export async function syncDirectory(path: string): Promise<void> {
  await syncFile(path);
}
