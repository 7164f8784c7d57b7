import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { crashIn, watchForCrash } from './crash.mjs';

const panic = `[  261.8] BUG: TASK stack guard page was hit at 0000000012345678 (stack is 00000000f..00000000a)
[  261.8] stack guard page: 0000 [#1] PREEMPT SMP NOPTI
[  261.9] Kernel panic - not syncing: Fatal exception in interrupt
[  261.9] Rebooting in 0 seconds..
`;

const dirs = [];
afterEach(() => {
  for (const dir of dirs.splice(0)) rmSync(dir, { recursive: true });
});

it('a crash is told by the line with which it began', () => {
  expect(crashIn(panic)).toMatch(/^BUG: TASK stack guard page was hit at/);
  expect(crashIn('[ 3.1] Kernel panic - not syncing: Attempted to kill init!')).toMatch(/^Kernel panic/);
});

it('a kernel that complains and goes on has not crashed', () => {
  expect(crashIn('[ 9.1] WARNING: CPU: 1 PID: 7\n[ 9.2] BUG: workqueue lockup - pool cpus=0')).toBeNull();
  expect(crashIn('')).toBeNull();
});

it('a log that tells of a crash is told of once, after what comes with it', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'fk-'));
  dirs.push(dir);
  const log = join(dir, 'serial.log');
  writeFileSync(log, '');
  const calls = [];
  const began = performance.now();
  const told = new Promise((resolve) => {
    const watched = watchForCrash(
      log,
      () => {
        calls.push(performance.now() - began);
        watched.close();
        resolve();
      },
      100,
    );
  });
  for (const line of panic.split('\n')) appendFileSync(log, `${line}\n`);
  await told;
  expect(calls).toHaveLength(1);
});
