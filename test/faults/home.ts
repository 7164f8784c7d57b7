/**
 * State directories for faults: a daemon under limits of our choice, on a file system of our choice. At the end nothing may be left of one:
 * no process, socket, mount or file.
 */
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { defaultStandby } from '@forkd/engine';
import { Forkd } from '@forkd/sdk';
import { expect } from 'vitest';
import { ended } from '../sandbox/home.js';
import { forkd } from '../support/cli.js';
import { stopDaemon } from '../support/daemon.js';
import { sharedHome } from '../support/home.js';
import { findLeftovers } from '../support/leftovers.js';
import { eventually } from '../support/wait.js';

export interface FaultHomeOptions {
  /** A file system of its own, MiB large: the template takes about 90. Needs `canMount`. */
  sizeMib?: number;
  /** Runs the CLI, and so the daemon: `prlimit --nofile=64`, for example. */
  wrap?: readonly string[];
  /** Set for the daemon. */
  env?: Record<string, string>;
}

export interface FaultHome extends AsyncDisposable {
  readonly path: string;
  readonly client: Forkd;
  /** Pid of the daemon that was started last. */
  readonly pid: number;
  /** Starts a daemon where none runs; answers its pid. */
  start(): Promise<number>;
  /** Ends the daemon by a signal, and waits until it is gone. */
  end(signal: NodeJS.Signals): Promise<void>;
  /** Waits until nothing is made ahead of demand: what the daemon starts from then on is asked for. */
  settled(): Promise<void>;
  /** What of this home is in use outside of it, now. */
  leftovers(): ReturnType<typeof findLeftovers>;
}

export const isRoot = process.getuid?.() === 0;

/** Whether a file system can be made for a test: by root, with loop devices. */
export const canMount = isRoot && existsSync('/dev/loop-control');

/**
 * Makes one, with the busybox template in it, and starts its daemon.
 *
 * @example await using home = await faultHome({ sizeMib: 160 });
 */
export async function faultHome(options: FaultHomeOptions = {}): Promise<FaultHome> {
  const path = mkdtempSync(join(tmpdir(), 'fk-'));
  const { sizeMib, wrap, env } = options;
  const image = sizeMib === undefined ? undefined : mountAt(path, sizeMib);
  const client = new Forkd({ home: path });
  const daemon = { pid: 0 };
  const start = async () => {
    const { code, stderr } = await forkd(['ls'], {
      env: { ...env, FORKD_HOME: path },
      ...(wrap && { wrap }),
    });
    if (code !== 0) throw new Error(`the daemon does not start: ${stderr}`);
    ({ pid: daemon.pid } = await client.daemon());
    return daemon.pid;
  };
  const leftovers = () => {
    const { mounts, ...rest } = findLeftovers(path);
    // Its own file system goes later.
    return { ...rest, mounts: mounts.filter((line) => line.split(' ')[4] !== path) };
  };
  const remove = () => {
    if (image !== undefined) {
      execFileSync('umount', [path]);
      rmSync(image);
    }
    rmSync(path, { recursive: true, force: true });
  };
  try {
    await copyTemplate(path);
    await start();
  } catch (error) {
    await stopDaemon(path);
    remove();
    throw error;
  }
  return {
    path,
    client,
    get pid() {
      return daemon.pid;
    },
    start,
    leftovers,
    async settled() {
      await eventually(async () => {
        const { standby } = await client.daemon();
        return standby.process.ready >= defaultStandby.process ? true : undefined;
      }, 30_000);
    },
    async end(signal) {
      process.kill(daemon.pid, signal);
      await ended(daemon.pid);
    },
    async [Symbol.asyncDispose]() {
      // A daemon without our limits, where it has to be started to remove what lives.
      const { code, stderr } = await forkd(['rm', '--all'], { env: { FORKD_HOME: path } });
      await client.close();
      await stopDaemon(path);
      const left = leftovers();
      const log = readFileSync(join(path, 'daemon.log'), 'utf8').split('\n');
      const defects = log.filter((line) => line.includes('"a defect'));
      remove();
      expect(defects).toEqual([]);
      expect(stderr).toBe('');
      expect(code).toBe(0);
      expect(left).toEqual({ processes: [], sockets: [], mounts: [], files: [] });
    },
  };
}

/** The busybox template of the shared home: what it was built from, and its snapshot. */
async function copyTemplate(path: string): Promise<void> {
  const shared = sharedHome();
  await using client = new Forkd({ home: shared });
  const { id } = await client.snapshots.get('busybox');
  for (const name of ['cache', 'snapshots']) mkdirSync(join(path, name), { mode: 0o700 });
  for (const name of readdirSync(join(shared, 'cache')).filter((one) => one.startsWith('verdict-')))
    cpSync(join(shared, 'cache', name), join(path, 'cache', name));
  for (const name of [join('cache', 'images'), join('cache', 'kernel'), join('snapshots', id)])
    execFileSync('cp', ['-a', '--sparse=always', join(shared, name), join(path, name)]);
}

/**
 * An ext4 file system in a file, without what it reserves for root. No tmpfs: there a page that was never written takes room when it is
 * read, which is another fault than a full disk.
 */
function mountAt(path: string, sizeMib: number): string {
  const image = `${path}.img`;
  const options = 'nodiscard,lazy_itable_init=1,lazy_journal_init=1';
  execFileSync('mkfs.ext4', ['-q', '-m', '0', '-J', 'size=4', '-E', options, image, `${sizeMib}M`]);
  execFileSync('mount', ['-o', 'loop', image, path]);
  chmodSync(path, 0o700);
  return image;
}
