import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { client, failureOf, fork, sh } from '../sandbox/support.js';
import { distinct } from '../support/wait.js';

const availableMiB = Number(/MemAvailable: +(\d+)/.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1]) / 1024;

describe('a fork that cannot be', () => {
  it.each([
    ['0', 0],
    ['-1', -1],
    ['1001', 1001],
    ['1.5', 1.5],
    ['"3"', '3'],
    ['null', null],
    ['1e+30', 1e30],
  ])('n = %s is refused by name and value', async (shown, n) => {
    const error = await failureOf(client().fork({ snapshot: 'busybox', n: n as number }));
    expect(error).toMatchObject({ code: 'invalid_argument', status: 400 });
    expect(error.message).toContain('n');
    expect(error.message).toContain(shown);
    expect(error.remedy).not.toBe('');
  });

  it.each([
    ['nope', 404, 'snapshot_not_found'],
    ['sn-0000000000000000', 404, 'snapshot_not_found'],
    ['../busybox', 400, 'invalid_argument'],
    ['.', 400, 'invalid_argument'],
    ['a\nb', 400, 'invalid_argument'],
    ['--help', 400, 'invalid_argument'],
    ['', 400, 'invalid_argument'],
    ['x'.repeat(65), 400, 'invalid_argument'],
  ])('of snapshot %j', async (snapshot, status, code) => {
    const error = await failureOf(client().fork({ snapshot }));
    expect(error).toMatchObject({ status, code });
    expect(error.message).toContain(JSON.stringify(snapshot).slice(1, 60).replace(/"$/, ''));
  });

  it('with fields that nobody knows, or values of the wrong form', async () => {
    const options = { snapshot: 'busybox', env: { 'A=B': 'x' } };
    expect(await failureOf(client().fork(options))).toMatchObject({ code: 'invalid_argument' });
    const nul = await failureOf(client().fork({ snapshot: 'busybox', env: { A: 'x\0y' } }));
    expect(nul).toMatchObject({ code: 'invalid_argument' });
    const prefix = await failureOf(client().fork({ snapshot: 'busybox', hostnamePrefix: 'a b' }));
    expect(prefix.message).toContain('a b');
  });

  it.skipIf(availableMiB > 24_000)(
    'for want of memory says so with numbers, before anything starts',
    async () => {
      const before = await client().sandboxes.list();
      const error = await failureOf(client().fork({ snapshot: 'busybox', n: 1000 }));
      expect(error).toMatchObject({ code: 'insufficient_memory', status: 507 });
      expect(error.message).toMatch(/1000 children need \d+ MiB .*\d+ MiB can be used/);
      expect(error.remedy).toMatch(/at most \d+/);
      expect(error.details).toMatchObject({ requested: 1000, possible: expect.any(Number) });
      expect((await client().sandboxes.list()).length).toBeLessThanOrEqual(before.length + 8);
    },
  );

  it('and is broken off by its caller leaves nothing', async () => {
    const gone = new AbortController();
    const forking = client().fork({
      snapshot: 'busybox',
      n: 20,
      metadata: { test: 'broken-off' },
      signal: gone.signal,
    });
    setTimeout(() => gone.abort(), 150);
    expect(await failureOf(forking)).toMatchObject({ code: 'cancelled' });
    // A fork of our own is answered after the children of the other are gone or were never begun.
    const ours = async () =>
      (await client().sandboxes.list()).filter(({ metadata }) => metadata.test === 'broken-off');
    await expect.poll(ours, { timeout: 20_000 }).toEqual([]);
  });
});

it('several forks at once are as many children, all different', async () => {
  const forks = await Promise.all([fork(4), fork(4), fork(4)]);
  try {
    const boxes = forks.flatMap((children) => children.boxes);
    const answers = await Promise.all(boxes.map((box) => sh(box, 'cat /run/forkd/generation; hostname')));
    expect(distinct(answers)).toBe(12);
  } finally {
    await Promise.all(forks.map((children) => children[Symbol.asyncDispose]()));
  }
});

it('a fork answers with timings, pids and what the machine is', async () => {
  await using children = await fork(2);
  for (const box of children.boxes) {
    const info = await box.info();
    expect(info).toMatchObject({ state: 'running', engine: 'qemu', snapshot_tag: 'busybox', vcpus: 1 });
    expect(info.timings?.total_ms).toBeGreaterThan(0);
    expect(info.memory_bytes).toBeGreaterThan(1024 * 1024);
    expect(readFileSync(`/proc/${info.pid}/comm`, 'utf8')).toMatch(/^qemu-system/);
  }
});
