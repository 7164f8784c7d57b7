import type { Sandbox } from '@forkd/sdk';
import { describe, expect, it } from 'vitest';
import { eventually } from '../support/wait.js';
import { fork, sh } from './support.js';

/** Everything that a guest under pressure still has to do, within the time that a person waits. */
async function answers(box: Sandbox): Promise<void> {
  const began = performance.now();
  expect((await box.ping()).pong).toBe(true);
  expect((await box.files.list('/')).length).toBeGreaterThan(5);
  await box.metrics();
  await box.processes();
  expect(performance.now() - began).toBeLessThan(10_000);
}

describe('the agent answers while its guest', () => {
  it('burns all its CPU', async () => {
    await using children = await fork();
    const { box } = children;
    const burn = await box.run({ shell: 'for i in $(seq 20); do (while :; do :; done) & done; wait' });
    await sh(box, 'sleep 0.5');
    await answers(box);
    expect(await sh(box, 'echo still')).toBe('still');
    burn.close();
    // All of them go, and the machine is quiet again.
    await eventually(async () =>
      (await box.processes()).some(({ pid, running }) => pid === burn.pid && running) ? undefined : true,
    );
  });

  it('forks without end, and is usable again when that was killed', async () => {
    await using children = await fork();
    const { box } = children;
    const bomb = box.exec({ shell: 'f() { f | f & }; f; sleep 1000' }, { timeoutSecs: 8 });
    await new Promise((resolve) => setTimeout(resolve, 4000));
    await answers(box);
    expect(await bomb).toMatchObject({ exit_code: expect.any(Number) });
    expect(
      await eventually(() => sh(box, 'echo usable', { timeoutSecs: 5 }).catch(() => undefined), 30_000),
    ).toBe('usable');
  });

  it('has no memory left', async () => {
    await using children = await fork();
    const { box } = children;
    // Several at once, each killed and begun again.
    const hungry = await box.run({
      shell:
        'for i in 1 2 3; do (while :; do dd if=/dev/zero of=/dev/null bs=40M count=10000; done) & done; wait',
    });
    hungry.stdout.resume();
    hungry.stderr?.resume();
    for (let i = 0; i < 3; i += 1) {
      await sh(box, 'sleep 0.5').catch(() => undefined);
      await answers(box);
    }
    hungry.close();
    expect(
      await eventually(() => sh(box, 'echo usable', { timeoutSecs: 5 }).catch(() => undefined), 30_000),
    ).toBe('usable');
  });

  it('has its memory file systems full', async () => {
    await using children = await fork();
    const { box } = children;
    const fill = 'for d in /tmp /dev/shm /run; do dd if=/dev/zero of=$d/full bs=64k 2>/dev/null; done; true';
    await box.exec({ shell: fill }, { timeoutSecs: 8 });
    await answers(box);
    await box.files.remove('/tmp/full').catch(() => undefined);
    await box.files.remove('/dev/shm/full').catch(() => undefined);
    await box.files.remove('/run/full').catch(() => undefined);
    expect(await sh(box, 'echo usable')).toBe('usable');
  });

  it('has opened all the files that it can', async () => {
    await using children = await fork();
    const { box } = children;
    const text =
      'for j in $(seq 8); do (ulimit -n 1048576 2>/dev/null; i=10; while eval "exec $i</dev/null" 2>/dev/null; do i=$((i+1)); [ $i -gt 3000 ] && break; done; sleep 1000) & done; wait';
    const holder = await box.run({ shell: text });
    await sh(box, 'sleep 1');
    await answers(box);
    holder.close();
  });

  it('holds hundreds of processes that the agent has started', async () => {
    await using children = await fork();
    const { box } = children;
    const many = await Promise.all(
      Array.from({ length: 100 }, (_, i) => box.exec({ shell: `sleep 1; echo ${i}` }, { timeoutSecs: 60 })),
    );
    expect(many.map(({ stdout }) => stdout)).toEqual(Array.from({ length: 100 }, (_, i) => `${i}\n`));
    await answers(box);
  });
});
