import { chown, link, mkdir, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { emptyQcow2 } from '../disk/qcow2.js';
import { vmmFiles } from '../qemu/argv.js';

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

/** What a child's directory links to, and the size of its disk. */
export interface ChildFiles {
  /** Absolute paths; linked, so that they stay while the child lives. */
  image: string;
  disk: string;
  diskBytes: number;
}

/** Makes what a child of a snapshot finds in its directory: image and disk as links, and an overlay of its own. */
export async function fillRunDirectory(
  dir: string,
  files: ChildFiles,
  user: VmmUser | undefined,
): Promise<void> {
  await Promise.all([
    link(files.image, join(dir, vmmFiles.image)),
    link(files.disk, join(dir, vmmFiles.disk)),
    makeOverlay(join(dir, vmmFiles.overlay), files.diskBytes, user),
  ]);
}

async function makeOverlay(path: string, bytes: number, user: VmmUser | undefined): Promise<void> {
  const handle = await open(path, 'wx', 0o600);
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
