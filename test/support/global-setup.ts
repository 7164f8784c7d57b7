/** One home for all tests over microVMs, with a daemon and the busybox template; gone at the end, with all that uses it. */
import { rmSync } from 'node:fs';
import { forkd } from './cli.js';
import { stopDaemon } from './daemon.js';
import { homeVariable, makeHome } from './home.js';

/** Each project loads this module anew, so what they share hangs on the process. */
const shared = globalThis as { forkdTestHome?: { users: number; ready: Promise<void> } };

/** Called once per project; the first makes the home, the last removes it. */
export async function setup(): Promise<() => Promise<void>> {
  shared.forkdTestHome ??= { users: 0, ready: prepare() };
  const home = shared.forkdTestHome;
  home.users += 1;
  await home.ready;
  return async () => {
    home.users -= 1;
    if (home.users === 0) await cleanUp();
  };
}

async function prepare(): Promise<void> {
  const home = makeHome();
  process.env[homeVariable] = home;
  const { code, stderr } = await forkd(['template', 'build', 'busybox'], {
    env: { FORKD_HOME: home, FORKD_URL: undefined },
    timeoutMs: 300_000,
  });
  if (code !== 0) {
    await cleanUp();
    throw new Error(`building the busybox template failed (exit ${code}):\n${stderr}`);
  }
}

async function cleanUp(): Promise<void> {
  const home = process.env[homeVariable];
  if (!home) return;
  await forkd(['rm', '--all'], { env: { FORKD_HOME: home } }).catch(() => undefined);
  await stopDaemon(home);
  rmSync(home, { recursive: true, force: true });
}
