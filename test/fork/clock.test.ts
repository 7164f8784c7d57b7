import { createInterface } from 'node:readline';
import type { Sandbox } from '@forkd/sdk';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Children, fork, sh, template } from '../sandbox/support.js';

let children: Children;
let source: Awaited<ReturnType<typeof template>>;
beforeAll(async () => {
  source = await template(
    `base: busybox
memory: 96M
warm_up:
  - cut -d' ' -f1 /proc/uptime > /root/uptime
`,
    'clock',
  );
  children = await fork(4, { snapshot: 'clock' });
});
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
  await source?.[Symbol.asyncDispose]();
});

/** Lines that a guest answers to lines, one at a time. */
async function conversation(box: Sandbox, text: string) {
  const process = await box.run({ shell: text }, { stdin: true });
  const lines = createInterface({ input: process.stdout })[Symbol.asyncIterator]();
  return {
    async ask(): Promise<string> {
      process.stdin?.write('\n');
      return String((await lines.next()).value);
    },
    async [Symbol.asyncDispose]() {
      process.stdin?.end();
      await process.wait();
    },
  };
}

/** Milliseconds by which a guest's wall clock is ahead of ours, and how wrong that may be: half the shortest round trip. */
async function ahead(box: Sandbox): Promise<{ ahead: number; error: number }> {
  await using clock = await conversation(
    box,
    `while read -r x; do adjtimex | awk '/tv_sec/ {s=$NF} /tv_usec/ {printf "%d %d\\n", s, $NF}'; done`,
  );
  let best = { error: Number.POSITIVE_INFINITY, ahead: 0 };
  for (let i = 0; i < 12; i += 1) {
    const before = Date.now();
    const [seconds = 0, micros = 0] = (await clock.ask()).split(' ').map(Number);
    const after = Date.now();
    const error = (after - before) / 2;
    if (error < best.error) best = { error, ahead: seconds * 1000 + micros / 1000 - (before + after) / 2 };
  }
  return best;
}

describe('the clock of a child', () => {
  it('is within 100 ms of the host, and goes on at its rate', async () => {
    for (const box of children.boxes) {
      const first = await ahead(box);
      expect(Math.abs(first.ahead)).toBeLessThan(100 + first.error);
      await sh(box, 'sleep 1');
      const second = await ahead(box);
      expect(Math.abs(second.ahead - first.ahead)).toBeLessThan(20 + first.error + second.error);
    }
  });

  it('does not go back behind what the template saw', async () => {
    for (const box of children.boxes) {
      const [template = 0, child = 0] = (await sh(box, "cat /root/uptime; cut -d' ' -f1 /proc/uptime"))
        .split('\n')
        .map(Number);
      expect(child).toBeGreaterThanOrEqual(template);
      // Nor does it jump by the age of the snapshot.
      expect(child - template).toBeLessThan(60);
    }
  });

  it('lets a sleep of 10 s last 10 s of the host', async () => {
    await using sleeper = await conversation(
      children.box,
      'while read -r x; do if [ "$y" ]; then sleep 10; fi; y=1; echo done; done',
    );
    await sleeper.ask();
    const began = performance.now();
    await sleeper.ask();
    const seconds = (performance.now() - began) / 1000;
    expect(seconds).toBeGreaterThan(9.95);
    expect(seconds).toBeLessThan(10.4);
  });
});
