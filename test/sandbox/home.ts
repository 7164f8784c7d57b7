/** A state directory of its own, with a daemon that a test may kill. Its caches and snapshots are those of the shared home. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Forkd } from '@forkd/sdk';
import { forkd } from '../support/cli.js';
import { stopDaemon } from '../support/daemon.js';
import { makeHome, sharedHome } from '../support/home.js';
import { eventually } from '../support/wait.js';

export interface OwnHome extends AsyncDisposable {
  readonly path: string;
  readonly client: Forkd;
  /** Starts a daemon where none runs; answers its pid. */
  start(): Promise<number>;
  /** Kills the daemon as a crash does, and waits until it is gone. */
  crash(): Promise<void>;
}

/**
 * Makes one. Hard links: nothing below `cache` and `snapshots` is ever changed in place.
 *
 * @example await using home = await ownHome(); await using children = await fork(1, {}, home.client);
 */
export async function ownHome(): Promise<OwnHome> {
  const path = makeHome();
  const shared = sharedHome();
  for (const name of ['cache', 'snapshots']) mkdirSync(join(path, name), { mode: 0o700 });
  if (existsSync(join(shared, 'cache')))
    execFileSync('cp', ['-al', `${join(shared, 'cache')}/.`, join(path, 'cache')]);
  // Only what was built: other tests branch, and remove branches, meanwhile.
  await using sharedClient = new Forkd({ home: shared });
  for (const { id, branched_from } of await sharedClient.snapshots.list())
    if (branched_from === undefined)
      execFileSync('cp', ['-al', join(shared, 'snapshots', id), join(path, 'snapshots', id)]);
  const client = new Forkd({ home: path });
  const start = async () => {
    const { code, stderr } = await forkd(['ls'], { env: { FORKD_HOME: path } });
    if (code !== 0) throw new Error(`the daemon does not start: ${stderr}`);
    return (await client.daemon()).pid;
  };
  let pid = await start();
  return {
    path,
    client,
    async start() {
      pid = await start();
      return pid;
    },
    async crash() {
      process.kill(pid, 'SIGKILL');
      await ended(pid);
    },
    async [Symbol.asyncDispose]() {
      await forkd(['rm', '--all'], { env: { FORKD_HOME: path } });
      await client.close();
      await stopDaemon(path);
      rmSync(path, { recursive: true, force: true });
    },
  };
}

/** Waits until a process that is no child of ours is gone. */
export async function ended(pid: number): Promise<void> {
  await eventually(() => {
    try {
      process.kill(pid, 0);
      return undefined;
    } catch {
      return true;
    }
  });
}
