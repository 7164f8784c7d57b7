import { constants } from 'node:fs';
import { access, realpath, stat } from 'node:fs/promises';
import { delimiter, isAbsolute, join } from 'node:path';
import { EngineError } from '../errors.js';

/** A program of the host that runs sandboxes. */
export interface ProgramSpec<T> {
  /** For people: "QEMU". */
  title: string;
  /** What is looked for now: a name on PATH, or an absolute path. */
  wanted: () => string;
  remedy: string;
  /** Looks at the program, links resolved; throws where it is not fit. */
  inspect: (path: string) => Promise<T>;
}

/**
 * A finder of a program, which remembers what it found until the file changes: every fork asks, and then it takes one look at that file. The
 * way through PATH is gone again only when it has changed.
 *
 * @returns a function that throws EngineError host_unfit when there is none, or what `inspect` throws
 */
export function programFinder<T extends { path: string }>(spec: ProgramSpec<T>): () => Promise<T> {
  let known: { wanted: string; key: string; found: T } | undefined;
  return async () => {
    const wanted = spec.wanted();
    if (known?.wanted === wanted && known.key === (await keyOf(known.found.path).catch(() => '')))
      return known.found;
    const path = await realpath(await locate(wanted, spec));
    const key = await keyOf(path);
    const found = await spec.inspect(path);
    known = { wanted, key, found };
    return found;
  };
}

async function keyOf(path: string): Promise<string> {
  const { ino, size, mtimeMs } = await stat(path);
  return `${path} ${ino} ${size} ${mtimeMs}`;
}

async function locate<T>(wanted: string, { title, remedy }: ProgramSpec<T>): Promise<string> {
  const path = await findProgram(wanted);
  if (path === null) throw new EngineError('host_unfit', `${title} (${wanted}) is not installed`, { remedy });
  return path;
}

/**
 * Where a program of the host lies.
 *
 * @param wanted an absolute path, or a name that is looked for on PATH and then in `more`
 * @returns null when there is none that may be executed
 */
export async function findProgram(wanted: string, more: readonly string[] = []): Promise<string | null> {
  const dirs = [...(process.env.PATH ?? '/usr/bin:/bin').split(delimiter), ...more];
  const candidates = isAbsolute(wanted) ? [wanted] : dirs.map((dir) => join(dir || '.', wanted));
  for (const candidate of candidates) {
    const usable = await access(candidate, constants.X_OK).then(
      () => true,
      () => false,
    );
    if (usable) return candidate;
  }
  return null;
}
