import { chown, mkdir, open, rm } from 'node:fs/promises';

/** Who VMMs run as. */
export interface VmmUser {
  uid: number;
  gid: number;
  /** Has to be given a /dev/kvm, since the host's is closed to it. */
  ownKvm?: boolean;
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

/** Removes it, with all that is in it. Fine when it is gone. */
export async function removeRunDirectory(dir: string): Promise<void> {
  await rm(dir, { recursive: true, force: true });
}
