import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { failureOf, fork, sh } from '../sandbox/support.js';
import { branch, inChild } from './support.js';

/** `T` of a process that a signal has stopped. */
function stateOf(pid: number): string | undefined {
  return /^State:\s+(\S)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
}

it('a branch of a VMM that somebody has stopped by a signal is refused at once, says what to do, and harms nothing', async () => {
  await using children = await fork();
  const { box } = children;
  await sh(box, 'echo kept > /dev/shm/x');
  const { pid } = await box.info();
  if (pid === null) throw new Error('no pid');
  process.kill(pid, 'SIGSTOP');
  try {
    const error = await failureOf(box.branch());
    expect(error).toMatchObject({ code: 'sandbox_not_running', status: 409 });
    expect(error.message).toContain(`process ${pid}, was stopped by a signal`);
    expect(error.remedy).toContain(`kill -CONT ${pid}`);
    expect(stateOf(pid)).toBe('T');
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  await using half = await branch(box);
  expect(await inChild(half.id, 'cat /dev/shm/x')).toBe('kept');
});
