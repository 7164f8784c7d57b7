/** The shared home of the tests over microVMs, with the python template built into it: minutes, once. */
import { forkd } from '../support/cli.js';
import { setup as setupHome } from '../support/global-setup.js';
import { sharedHome } from '../support/home.js';

export async function setup(): Promise<() => Promise<void>> {
  const teardown = await setupHome();
  const { code, stderr } = await forkd(['template', 'build', 'python'], {
    env: { FORKD_HOME: sharedHome(), FORKD_URL: undefined },
    timeoutMs: 15 * 60_000,
  });
  if (code === 0) return teardown;
  await teardown();
  throw new Error(`building the python template failed (exit ${code}):\n${stderr}`);
}
