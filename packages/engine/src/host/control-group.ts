import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

/** Where control groups and processes are. */
export interface HostRoots {
  cgroup: string;
  proc: string;
}

const roots: HostRoots = { cgroup: '/sys/fs/cgroup', proc: '/proc' };

/**
 * Files of a group that bounds memory, in both versions of the interface. `line` of /proc/PID/cgroup names the group; `cache` in its memory.stat is
 * what the kernel gives back before the limit is felt.
 */
const versions = [
  {
    ...{ line: /^0::(.*)$/m, under: '', max: 'memory.max', current: 'memory.current' },
    cache: /^(?:in)?active_file (\d+)$/gm,
  },
  {
    ...{ line: /^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(.*)$/m, under: 'memory' },
    ...{ max: 'memory.limit_in_bytes', current: 'memory.usage_in_bytes' },
    cache: /^total_(?:in)?active_file (\d+)$/gm,
  },
];

/** Bytes that the tightest control group above a process leaves; page cache counts as free. Null where none that can be seen bounds it. */
export async function memoryLeftBy(pid: number, { cgroup, proc }: HostRoots = roots): Promise<number | null> {
  const text = await readOr(join(proc, String(pid), 'cgroup'));
  const found: (number | null)[] = [];
  for (const version of versions) {
    const root = join(cgroup, version.under);
    let path = version.line.exec(text)?.[1];
    for (; path !== undefined; path = path === '/' ? undefined : dirname(path))
      found.push(await leftIn(join(root, path), version));
  }
  const bounds = found.filter((bytes) => bytes !== null);
  return bounds.length === 0 ? null : Math.min(...bounds);
}

/** The frozen control group that a process is in, in either version; null where it is in none that can be seen. */
export async function frozenGroupOf(
  pid: number,
  { cgroup, proc }: HostRoots = roots,
): Promise<string | null> {
  const text = await readOr(join(proc, String(pid), 'cgroup'));
  // Both files tell of groups above, too.
  for (const { line, under, file, frozen } of [
    { line: /^0::(.*)$/m, under: '', file: 'cgroup.events', frozen: /^frozen 1$/m },
    {
      ...{ line: /^\d+:(?:[^:]*,)?freezer(?:,[^:]*)?:(.*)$/m, under: 'freezer' },
      ...{ file: 'freezer.state', frozen: /^FR(OZEN|EEZING)$/m },
    },
  ]) {
    const path = line.exec(text)?.[1];
    const directory = path === undefined ? undefined : join(cgroup, under, path);
    if (directory !== undefined && frozen.test(await readOr(join(directory, file)))) return directory;
  }
  return null;
}

/** Null for a group without limit, and for one that cannot be seen from here. */
async function leftIn(directory: string, version: (typeof versions)[number]): Promise<number | null> {
  const names = [version.max, version.current, 'memory.stat'];
  const [max, current, stat] = await Promise.all(names.map((name) => readOr(join(directory, name))));
  const limit = Number.parseInt(max!, 10);
  const used = Number.parseInt(current!, 10);
  if (Number.isNaN(limit) || Number.isNaN(used)) return null; // "max", or no such file
  const cache = [...stat!.matchAll(version.cache)].reduce((sum, [, bytes]) => sum + Number(bytes), 0);
  return Math.max(0, limit - used + cache);
}

/** What a file of the kernel says; nothing where it is not there, which is how it says that there is no bound. */
async function readOr(path: string): Promise<string> {
  return await readFile(path, 'utf8').catch(() => '');
}
