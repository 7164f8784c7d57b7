import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Children, client, fork, sh, template } from '../sandbox/support.js';
import { distinct, eventually } from '../support/wait.js';

// The hook runs after the child knows who it is and before its processes are thawed.
const yaml = `base: busybox
memory: 96M
files:
  - path: /etc/forkd/resume.d/10-look
    mode: "0755"
    content: |
      #!/bin/sh
      wc -l < /tmp/ticks > /run/first
      sleep 0.5
      wc -l < /tmp/ticks > /run/second
      hostname > /run/hook-hostname
setup:
  - echo fsynced > /root/kept && fsync /root/kept 2>/dev/null || sync
warm_up:
  - run: |
      i=0
      while :; do
        i=$((i + 1))
        echo "$i $(cat /run/forkd/generation 2>/dev/null)" >> /tmp/ticks
        sleep 0.1
      done
    background: true
  - mkfifo /tmp/pipe; (read -r line < /tmp/pipe; echo "got $line" > /tmp/read) &
  - (sleep 3; echo fired >> /root/fired) & echo unsynced > /root/unsynced
ready: test "$(wc -l < /tmp/ticks)" -ge 3
`;

let children: Children;
let source: Awaited<ReturnType<typeof template>>;
beforeAll(async () => {
  source = await template(yaml, 'ticker');
  children = await fork(4, { snapshot: 'ticker' });
}, 180_000); // Two machines boot: one for its setup.
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
  await source?.[Symbol.asyncDispose]();
});

describe('what ran in the template', () => {
  it('stands still until the child has been told who it is', async () => {
    const seen = await Promise.all(children.boxes.map((box) => sh(box, 'cat /run/first /run/second')));
    // All stand where the template stood.
    expect(distinct(seen)).toBe(1);
    const [first, second] = String(seen[0]).split('\n');
    expect(first).toBe(second);
    expect(Number(first)).toBeGreaterThanOrEqual(3);
    expect(await sh(children.box, 'cat /run/hook-hostname')).toBe(children.box.lastInfo?.hostname);
  });

  it('goes on afterwards, under the new generation and without a gap', async () => {
    for (const box of children.boxes) {
      const before = Number(await sh(box, 'wc -l < /tmp/ticks'));
      await eventually(async () => (Number(await sh(box, 'wc -l < /tmp/ticks')) > before ? true : undefined));
      const lines = (await sh(box, 'cat /tmp/ticks')).split('\n').map((line) => line.split(' '));
      expect(lines.map(([tick]) => Number(tick))).toEqual(lines.map((_, at) => at + 1));
      expect(lines.at(-1)?.[1]).toBe(box.lastInfo?.generation);
      const frozenAt = Number(await sh(box, 'cat /run/second'));
      const later = lines.slice(frozenAt + 1);
      expect(distinct([box.lastInfo?.generation, ...later.map(([, generation]) => generation)])).toBe(1);
    }
  });

  it('keeps its local pipes', async () => {
    for (const [at, box] of children.boxes.entries()) {
      await sh(box, `echo ${at} > /tmp/pipe`);
      const got = await eventually(
        async () => (await sh(box, 'cat /tmp/read 2>/dev/null || true')) || undefined,
      );
      expect(got).toBe(`got ${at}`);
    }
  });

  it('has its timers fire once', async () => {
    for (const box of children.boxes) {
      await eventually(async () => (await sh(box, 'cat /root/fired 2>/dev/null || true')) || undefined);
    }
    await sh(children.box, 'sleep 1');
    for (const box of children.boxes) expect(await sh(box, 'cat /root/fired')).toBe('fired');
  });

  it('left its files, synced or not', async () => {
    for (const box of children.boxes) {
      expect(await sh(box, 'cat /root/kept /root/unsynced')).toBe('fsynced\nunsynced');
    }
  });

  it('is listed in the child, and can be killed there without harm to its siblings', async () => {
    const [first, second] = children.boxes;
    if (!first || !second) throw new Error('two are needed');
    const service = (await first.processes()).find(({ command }) => command.join(' ').includes('/tmp/ticks'));
    expect(service).toMatchObject({ running: true });
    await sh(first, `kill -9 ${service?.pid}`);
    await eventually(async () =>
      (await first.processes()).some(({ pid, running }) => pid === service?.pid && running)
        ? undefined
        : true,
    );
    const still = (await second.processes()).find(({ pid }) => pid === service?.pid);
    expect(still).toMatchObject({ running: true });
  });
});

it('a snapshot is unchanged by what its children did', async () => {
  expect(await client().snapshots.verify('ticker')).toMatchObject({ ok: true, problems: [] });
});
