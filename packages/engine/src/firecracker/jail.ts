/** The jailer of Firecracker's releases: a VMM that sees nothing but its own directory. */
import { constants } from 'node:fs';
import { access, mkdir, open, readdir, realpath, rm, symlink } from 'node:fs/promises';
import { basename, dirname, isAbsolute, join } from 'node:path';
import type { VmmUser } from '../machine/run-directory.js';

/** The VMM's id, with which the jailer names a directory. */
const ID = 'forkd';

/** Where the jailer is told to make its directories; in a run directory, for as long as it takes to start. */
const BASE = '.jail';

/** What the jailer makes in the VMM's directory, besides a copy of the program. */
const MADE = ['dev', 'run', 'old_root'];

/** Program header of ELF that names a dynamic loader. */
const PT_INTERP = 3;

export type Jailer = { path: string } | { path: null; reason: string };

/**
 * Finds the jailer: `FORKD_JAILER` (a path, or `off`), else the `jailer` beside the program.
 *
 * @param firecracker the program, links resolved
 * @returns why there is none to be used, otherwise
 */
export async function findJailer(firecracker: string, env: NodeJS.ProcessEnv = process.env): Promise<Jailer> {
  const wanted = env.FORKD_JAILER;
  if (wanted === 'off') return { path: null, reason: 'FORKD_JAILER=off' };
  if (wanted !== undefined && !isAbsolute(wanted))
    return { path: null, reason: `FORKD_JAILER=${JSON.stringify(wanted)} is no absolute path` };
  if (process.getuid?.() !== 0) return { path: null, reason: 'it takes root' };
  const path = wanted ?? join(dirname(firecracker), 'jailer');
  const usable = await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
  if (!usable) return { path: null, reason: `${path} is not there` };
  if (await needsLoader(firecracker))
    return {
      path: null,
      reason: `${firecracker} is linked dynamically: in a jail it would not find its libraries (releases are static)`,
    };
  return { path };
}

/** Whether a program of ELF, 64 bits, little-endian, is started by a dynamic loader. */
export async function needsLoader(path: string): Promise<boolean> {
  await using file = await open(path);
  const header = Buffer.alloc(64);
  await file.read(header, 0, header.length, 0);
  const [start, size, count] = [
    Number(header.readBigUInt64LE(32)),
    header.readUInt16LE(54),
    header.readUInt16LE(56),
  ];
  const table = Buffer.alloc(size * count);
  await file.read(table, 0, table.length, start);
  return Array.from({ length: count }, (_, at) => table.readUInt32LE(at * size)).includes(PT_INTERP);
}

/**
 * Prepares a directory to be the root of a jail: what the jailer would make below its base leads back to it, so that all names in it are the
 * same within and without.
 *
 * @returns what is run in the place of `argv`, which begins with Firecracker's program
 */
export async function jailed(
  jailer: string,
  dir: string,
  user: Pick<VmmUser, 'uid' | 'gid'>,
  argv: readonly string[],
): Promise<string[]> {
  const [program, ...args] = argv as [string, ...string[]];
  const parent = join(dir, BASE, basename(await realpath(program)), ID);
  await mkdir(parent, { recursive: true, mode: 0o700 });
  await symlink('../../..', join(parent, 'root'));
  const owner = ['--uid', String(user.uid), '--gid', String(user.gid)];
  const place = ['--exec-file', program, '--chroot-base-dir', join(dir, BASE), '--id', ID];
  // The jailer gives the VMM its id by itself.
  const own = args.filter((arg, at) => arg !== '--id' && args[at - 1] !== '--id');
  return [jailer, ...owner, ...place, '--', ...own];
}

/** Clears away what a VMM that has started needs no more: the way in, and the copy of its program, which it keeps open. */
export async function tidyJail(dir: string, program: string): Promise<void> {
  await rm(join(dir, BASE), { recursive: true, force: true });
  await rm(join(dir, basename(program)), { force: true });
}

/** Whether a VMM's directory is the root of its jail. */
export async function isJail(dir: string): Promise<boolean> {
  const names = await readdir(dir);
  return MADE.slice(0, 2).every((name) => names.includes(name));
}
