import { expect, it } from 'vitest';
import { forkdJson } from '../support/cli.js';
import { stopDaemon } from '../support/daemon.js';
import { sharedHome } from '../support/home.js';
import { findLeftovers } from '../support/leftovers.js';

it('no test has left a sandbox, and an ended daemon leaves no process, socket, mount or half-made file', async () => {
  const home = sharedHome();
  expect(await forkdJson(['ls'])).toEqual([]);
  await stopDaemon(home);
  expect(findLeftovers(home)).toEqual({ processes: [], sockets: [], mounts: [], files: [] });
});
