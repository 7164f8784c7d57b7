import { link, open } from 'node:fs/promises';
import { join } from 'node:path';
import { emptyQcow2 } from '../disk/qcow2.js';
import type { VmmUser } from '../machine/run-directory.js';
import type { DiskLink } from '../snapshot/index.js';
import { belowFile, vmmFiles } from './argv.js';

/** Links the files of a snapshot's disk into a directory, base first. */
export async function linkDisks(dir: string, disks: readonly DiskLink[]): Promise<void> {
  await Promise.all(disks.map(({ path }, index) => link(path, join(dir, belowFile(index)))));
}

/** Makes an overlay of a child: empty, its own, of the size of the snapshot's disk in bytes. */
export async function makeOverlay(
  dir: string,
  bytes: number,
  user: VmmUser | undefined,
  name: string = vmmFiles.overlay,
): Promise<void> {
  const handle = await open(join(dir, name), 'wx', 0o600);
  try {
    await handle.writeFile(emptyQcow2(bytes));
    if (user) await handle.chown(user.uid, user.gid);
  } finally {
    await handle.close();
  }
}
