import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { runWith } from './session.mjs';

const unhandled = [];
const note = (reason) => void unhandled.push(reason);
beforeEach(() => {
  unhandled.length = 0;
  process.on('unhandledRejection', note);
});
afterEach(() => void process.off('unhandledRejection', note));

/** As the agent's library does where a session is lost: output and wait end with the same error. */
function lostSession(error) {
  const stdout = new PassThrough();
  const lost = once(stdout, 'resume').then(async () => {
    stdout.write('a line\n');
    await setImmediate();
    stdout.destroy(error);
    throw error;
  });
  const child = { stdout, stderr: null, stdin: null, wait: () => lost, signal: async () => {} };
  return { spawn: async () => child };
}

it('a machine that is lost amid a command is told once, by the command', async () => {
  const error = new Error('the guest agent did not come back');
  const lines = [];
  const running = runWith(lostSession(error), ['true'], {
    onLine: (line) => void lines.push(line),
  });
  await expect(running).rejects.toBe(error);
  await setImmediate();
  expect(lines).toEqual(['a line']);
  expect(unhandled).toEqual([]);
});
