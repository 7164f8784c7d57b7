/** What a state directory has left behind on the host. */
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';

export interface Leftovers {
  processes: string[];
  sockets: string[];
  mounts: string[];
  files: string[];
}

/**
 * Looks for anything that still belongs to `home`: processes that name it or work in it or hold its files, sockets that listen
 * below it, mounts, and files of things that should be gone.
 */
export function findLeftovers(home: string): Leftovers {
  return { processes: processes(home), sockets: sockets(home), mounts: mounts(home), files: files(home) };
}

function processes(home: string): string[] {
  const found: string[] = [];
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    // The runner and its workers carry the path in their environment; what counts is arguments, directory and open files.
    if (Number(pid) === process.pid || Number(pid) === process.ppid) continue;
    const command = text(`/proc/${pid}/cmdline`).replaceAll('\0', ' ').trim();
    const paths = [link(`/proc/${pid}/cwd`), ...open(pid)];
    if (command.includes(home) || paths.some((path) => path === home || path.startsWith(`${home}/`))) {
      found.push(`${pid} ${command}`);
    }
  }
  return found;
}

function sockets(home: string): string[] {
  return text('/proc/net/unix')
    .split('\n')
    .filter((line) => line.includes(home));
}

function mounts(home: string): string[] {
  return text('/proc/self/mountinfo')
    .split('\n')
    .filter((line) => line.includes(home));
}

/** Sandboxes, sockets, and whatever is half made (temporary names start with a dot). */
function files(home: string): string[] {
  const found: string[] = [];
  for (const name of list(home)) {
    if (name === 'forkd.sock') found.push(name);
    if (name === 'run') found.push(...list(join(home, name)).map((entry) => `run/${entry}`));
    if (name === 'snapshots') {
      found.push(
        ...list(join(home, name))
          .filter((entry) => !entry.startsWith('sn-'))
          .map((entry) => `snapshots/${entry}`),
      );
    }
  }
  for (const name of list(join(home, 'cache'))) {
    const inside = list(join(home, 'cache', name));
    found.push(
      ...inside
        .filter((entry) => entry.includes('.tmp') || entry.startsWith('.'))
        .map((e) => `cache/${name}/${e}`),
    );
  }
  return found;
}

function list(directory: string): string[] {
  return existsSync(directory) ? safely(() => readdirSync(directory), []) : [];
}

function open(pid: string): string[] {
  const directory = `/proc/${pid}/fd`;
  return safely(() => readdirSync(directory), []).map((fd) => link(`${directory}/${fd}`));
}

const text = (path: string): string => safely(() => readFileSync(path, 'utf8'), '');
const link = (path: string): string => safely(() => readlinkSync(path), '');

/** Processes end while they are looked at. */
function safely<T>(read: () => T, otherwise: T): T {
  try {
    return read();
  } catch {
    return otherwise;
  }
}
