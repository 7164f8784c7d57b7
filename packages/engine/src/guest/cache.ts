/** Files of the state directory's cache: made under a temporary name, renamed when whole, verified cheaply at each use. */
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { sha256File } from '../hash.js';

/** What a half-made thing is called; anything of this name that is found at start is left over from a run that died. */
export const TEMPORARY_PREFIX = '.tmp-';

/** A directory for half-made things beside their final place, removed when disposed of. */
export interface Scratch extends AsyncDisposable {
  readonly dir: string;
}

/** Makes `parent` (0700) and a scratch directory in it. */
export async function scratchIn(parent: string): Promise<Scratch> {
  await mkdir(parent, { recursive: true, mode: 0o700 });
  const dir = join(parent, `${TEMPORARY_PREFIX}${process.pid}-${randomBytes(6).toString('hex')}`);
  await mkdir(dir, { mode: 0o700 });
  return { dir, [Symbol.asyncDispose]: () => rm(dir, { recursive: true, force: true }) };
}

/** Makes a file one that nobody changes and every VMM's user may read, whatever the umask, and flushes it. */
export async function sealFile(path: string): Promise<void> {
  await chmod(path, 0o444);
  await syncPath(path);
}

/** Seals a file, moves it to its final name, and flushes the directory that now holds it. */
export async function publish(from: string, parent: string, name: string): Promise<string> {
  await sealFile(from);
  const to = join(parent, name);
  await rename(from, to);
  await syncPath(parent);
  return to;
}

/** fsync of a file or directory. */
export async function syncPath(path: string): Promise<void> {
  await using handle = await open(path, 'r');
  await handle.sync();
}

/** A file as it was when its hash was computed. */
export interface Stamp {
  bytes: number;
  mtimeMs: number;
  sha256: string;
}

export async function stampOf(path: string): Promise<Stamp> {
  const info = await stat(path);
  return { bytes: info.size, mtimeMs: info.mtimeMs, sha256: await sha256File(path) };
}

/**
 * Whether a file is still what was stamped. Size and time of change decide; only where the time differs (a copied state directory) is it
 * read and hashed.
 */
export async function matchesStamp(path: string, stamp: Stamp): Promise<boolean> {
  const info = await stat(path).catch(() => null);
  if (!info?.isFile() || info.size !== stamp.bytes) return false;
  return sameTime(info.mtimeMs, stamp.mtimeMs) || (await sha256File(path)) === stamp.sha256;
}

/** Archives, and some file systems, keep whole seconds: what came through one would be hashed at each use. */
function sameTime(now: number, then: number): boolean {
  return now === then || now === Math.floor(then / 1000) * 1000;
}

/** A JSON file of ours; null when it is not there or not whole. */
export async function readJson<T>(path: string): Promise<T | null> {
  try {
    return JSON.parse(await readFile(path, 'utf8')) as T;
  } catch {
    return null;
  }
}

/** Replaces a JSON file at once. Not flushed: what is lost is made again. */
export async function writeJson(path: string, value: unknown): Promise<void> {
  const parent = dirname(path);
  await mkdir(parent, { recursive: true, mode: 0o700 });
  const temporary = join(parent, `${TEMPORARY_PREFIX}${process.pid}-${randomBytes(6).toString('hex')}`);
  try {
    await writeFile(temporary, JSON.stringify(value, null, 1), { mode: 0o600 });
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

/** Removes what dead processes left half-made in a directory. Returns the names. */
export async function sweepScratch(parent: string): Promise<string[]> {
  const names = (await readdir(parent).catch(() => [])).filter((name) => name.startsWith(TEMPORARY_PREFIX));
  const dead = names.filter((name) => !isAlive(Number(name.slice(TEMPORARY_PREFIX.length).split('-')[0])));
  await Promise.all(dead.map((name) => rm(join(parent, name), { recursive: true, force: true })));
  return dead;
}

function isAlive(pid: number): boolean {
  if (!Number.isSafeInteger(pid) || pid < 1) return false;
  if (pid === process.pid) return true;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
