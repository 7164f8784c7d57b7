import { it } from 'vitest';
import { ownHome } from '../sandbox/home.js';
import { sessionsGoOnThroughBranches } from '../support/sessions.js';
import { takeOver } from './library.js';

it('a tcp connection, a watch and a command go on through branches: nothing is lost, repeated, or out of order', async () => {
  await using home = await ownHome();
  await using library = await takeOver(home);
  const source = await library.fork();
  try {
    await sessionsGoOnThroughBranches(source);
  } finally {
    await source.destroy();
  }
});
