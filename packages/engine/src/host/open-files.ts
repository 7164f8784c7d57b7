import { readdir, readFile, stat } from 'node:fs/promises';
import { EngineError } from '../errors.js';
import { Held } from './held.js';

/** Files that one child keeps open in this process: the connections to its shim, its monitor and its agent; and one that its start has for a while. */
const CHILD_FILES = 4;

/** Files that forks leave to the rest: clients that connect, what is read and written for them, the journal. */
const RESERVE_FILES = 48;

/** Files of children that are being started, which may not be open yet. */
const pending = new Held();

/** Files that children may still open, and the limit of this process that says so. */
export async function spareFiles(): Promise<{ spare: number; limit: number }> {
  const [limit, open] = await Promise.all([fileLimit(), openFiles()]);
  return { spare: Math.max(0, limit - open - RESERVE_FILES - pending.amount), limit };
}

/**
 * Reserves open files for `n` children that are about to start. Dispose when they run or have failed. Without, a daemon would come to where it
 * cannot even take the connection of a client that wants to remove something.
 *
 * @throws EngineError limit_reached, with the numbers, before anything has started
 */
export async function reserveFiles(n: number): Promise<Disposable> {
  const { spare, limit } = await spareFiles();
  const needed = n * CHILD_FILES;
  if (needed > spare) {
    const fit = Math.floor(spare / CHILD_FILES);
    throw new EngineError(
      'limit_reached',
      `${n} children need ${needed} open files of the daemon (${CHILD_FILES} each), and ${spare} of its ${limit} can be used: ` +
        `${RESERVE_FILES} stay reserved for its clients`,
      {
        remedy: `${fit > 0 ? `Fork at most ${fit}, remove` : 'Remove'} sandboxes, or raise the limit of the daemon (ulimit -n) and start it again.`,
        details: { requested: n, files_each: CHILD_FILES, files_available: spare, possible: fit },
      },
    );
  }
  return pending.hold(needed);
}

/** The soft limit; Node.js has raised it to the hard one. It can be changed from outside, so it is read anew. */
async function fileLimit(): Promise<number> {
  const text = await readFile('/proc/self/limits', 'utf8');
  const soft = /^Max open files\s+(\d+|unlimited)/m.exec(text)?.[1];
  return soft === undefined || soft === 'unlimited' ? Number.MAX_SAFE_INTEGER : Number(soft);
}

/** The size of that directory is their number, from Linux 6.2 on; before, it is 0. */
async function openFiles(): Promise<number> {
  const { size } = await stat('/proc/self/fd');
  return size > 0 ? size : (await readdir('/proc/self/fd')).length;
}
