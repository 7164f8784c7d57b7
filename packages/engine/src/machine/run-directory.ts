import { chown, link, mkdir, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { emptyQcow2 } from '../disk/qcow2.js';
import { belowFile, vmmFiles } from '../qemu/argv.js';
import type { DiskLink } from '../snapshot/index.js';

/** Who VMMs run as. */
export interface VmmUser {
  uid: number;
  gid: number;
}

/**
 * The directory of one sandbox: working directory of its VMM, which may make files in it but not touch those of others
 * (sticky), and reach nothing above it.
 */
export async function makeRunDirectory(dir: string, user: VmmUser | undefined): Promise<void> {
  await mkdir(dir, { mode: 0o700 });
  await handOver(dir, user);
}

/** Lets the VMM's user make files in a directory that stays ours. */
export async function handOver(dir: string, user: VmmUser | undefined): Promise<void> {
  if (!user) return;
  await chown(dir, process.getuid!(), user.gid);
  const handle = await open(dir);
  try {
    await handle.chmod(0o1770);
  } finally {
    await handle.close();
  }
}

/** Links an image into a directory, so that it stays while the child lives. */
export async function linkImage(dir: string, image: string): Promise<void> {
  await link(image, join(dir, vmmFiles.image));
}

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

/** Removes it, with all that is in it. Fine when it is gone. */
export async function removeRunDirectory(dir: string): Promise<void> {
  await rm(dir, { recursive: true, force: true });
}
