import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Children, client, fork, inEach, sh, template } from '../sandbox/support.js';
import { distinct, eventually } from '../support/wait.js';

const CHILDREN = 50;

/*
 * The hook runs after the child knows who it is and before its processes are thawed; it takes longer than a tick. The ticker is one process that
 * starts no other: fifty of them leave a host time for more.
 */
const yaml = `base: busybox
memory: 96M
files:
  - path: /etc/forkd/resume.d/10-look
    mode: "0755"
    content: |
      #!/bin/sh
      wc -l < /tmp/ticks > /run/first
      sleep 1.3
      wc -l < /tmp/ticks > /run/second
      hostname > /run/hook-hostname
setup:
  - echo fsynced > /root/kept && fsync /root/kept 2>/dev/null || sync
warm_up:
  - run: |
      i=0
      mkfifo /tmp/never
      while :; do
        i=$((i + 1)); generation=
        [ -e /run/forkd/generation ] && read -r generation < /run/forkd/generation
        echo "$i $generation" >> /tmp/ticks
        read -r -t 1 x <> /tmp/never
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
  children = await fork(CHILDREN, { snapshot: 'ticker' });
}, 400_000); // Two machines boot: one for its setup.
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
  await source?.[Symbol.asyncDispose]();
});

describe(`what ran in the template, in ${CHILDREN} children`, { timeout: 240_000 }, () => {
  it('stands still until the child has been told who it is', async () => {
    const look = 'cat /run/first /run/second /run/hook-hostname';
    const seen = (await inEach(children.boxes, (box) => sh(box, look))).map((text) => text.split('\n'));
    // All stand where the template stood.
    expect(distinct(seen.map(([first]) => first))).toBe(1);
    for (const [at, [first, second, hostname]] of seen.entries()) {
      expect(first).toBe(second);
      expect(Number(first)).toBeGreaterThanOrEqual(3);
      expect(hostname).toBe(children.boxes[at]?.lastInfo?.hostname);
    }
  });

  it('goes on afterwards, under the new generation and without a gap', async () => {
    await inEach(children.boxes, async (box) => {
      const look = 'cat /run/second; cat /tmp/ticks';
      // The first tick may have looked before it stood still.
      const lines = await eventually(async () => {
        const [frozenAt = '', ...all] = (await sh(box, look)).split('\n');
        const ticks = all.map((line) => line.split(' '));
        return ticks.length >= Number(frozenAt) + 2 ? { frozenAt: Number(frozenAt), ticks } : undefined;
      }, 60_000);
      const { frozenAt, ticks } = lines;
      expect(ticks.map(([tick]) => Number(tick))).toEqual(ticks.map((_, at) => at + 1));
      const later = ticks.slice(frozenAt + 1).map(([, generation]) => generation);
      expect(distinct([box.lastInfo?.generation, ...later])).toBe(1);
    });
  });

  it('keeps its local pipes', async () => {
    await inEach(children.boxes, async (box, at) => {
      const text = `echo ${at} > /tmp/pipe; until [ -s /tmp/read ]; do usleep 20000; done; cat /tmp/read`;
      expect(await sh(box, text)).toBe(`got ${at}`);
    });
  });

  it('has its timers fire once, and left its files, synced or not', async () => {
    const text =
      'until [ -s /root/fired ]; do usleep 20000; done; sleep 1; cat /root/fired /root/kept /root/unsynced';
    const seen = await inEach(children.boxes, (box) => sh(box, text));
    expect(seen).toEqual(children.boxes.map(() => 'fired\nfsynced\nunsynced'));
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
