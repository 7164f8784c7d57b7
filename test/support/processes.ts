/** Processes of the host, from /proc. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

/** All that run now. */
function all(): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

/** NaN for a process that has ended. */
export function parentOf(pid: number): number {
  try {
    return Number(/^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]);
  } catch {
    return Number.NaN;
  }
}

export function childrenOf(pid: number): number[] {
  return all().filter((one) => parentOf(one) === pid);
}

/** Those that work in a directory: of a run directory, its shim, its VMM, and the clones of that. */
export function processesIn(dir: string): number[] {
  return all().filter((pid) => {
    try {
      return readlinkSync(`/proc/${pid}/cwd`) === dir;
    } catch {
      return false; // It has ended meanwhile, or is a zombie.
    }
  });
}

/** All whose session it is. */
export function processesOfSession(leader: number): number[] {
  return all().filter((pid) => {
    try {
      // The name, which may hold anything, ends with the last bracket; state, parent, group and session follow.
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
      return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[3]) === leader;
    } catch {
      return false; // It has ended meanwhile.
    }
  });
}
