import { createInterface } from 'node:readline';
import type { Sandbox } from '@forkd/sdk';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { fork, inEach, sh, template } from '../sandbox/support.js';
import { guestProgram } from '../support/guest-program.js';

const CHILDREN = 50;
/** Two looks at the wall clock against the monotonic one lie up to a millisecond apart. */
const SAMPLE_MS = 2.5;
/** The guest's clock goes by a rate that was measured: docs/limits.md. */
const RATE = 1e-3;

let program: ReturnType<typeof guestProgram>;
beforeAll(() => {
  program = guestProgram(new URL('./clocks.c', import.meta.url));
});
afterAll(() => program[Symbol.dispose]());

const yaml = () => `base: busybox
memory: 96M
files:
  - {path: /root/clocks, from: ${program.path}, mode: "0755"}
warm_up:
  - echo look | /root/clocks > /root/then
`;

/** Clocks of the host, ms. */
const here = () => ({ wall: Date.now(), monotonic: performance.now() });

/** What a guest says of its clocks (clocks.c), all in ms, and what those of the host said before it was asked, and after its answer. */
interface Look extends ReturnType<typeof parsed> {
  before: ReturnType<typeof here>;
  after: ReturnType<typeof here>;
}

const tookOf = ({ before, after }: Look) => after.monotonic - before.monotonic;

async function watch(box: Sandbox) {
  const process = await box.run(['/root/clocks'], { stdin: true });
  const lines = createInterface({ input: process.stdout })[Symbol.asyncIterator]();
  const ask = async (what: 'look' | 'sleep'): Promise<Look> => {
    const before = here();
    process.stdin?.write(`${what}\n`);
    const answer = String((await lines.next()).value);
    return { ...parsed(answer), before, after: here() };
  };
  return {
    ask,
    /** The look of several that took the least time: the one that is known best. */
    async best(): Promise<Look> {
      const looks = [await ask('look'), await ask('look'), await ask('look'), await ask('look')];
      looks.sort((a, b) => tookOf(a) - tookOf(b));
      return looks[0] as Look;
    },
    async end(): Promise<void> {
      process.stdin?.end();
      await process.wait();
    },
  };
}

function parsed(answer: string) {
  const numbers = answer.split(' ').map((text) => Number(text) / 1000);
  expect(numbers.every(Number.isFinite) && numbers.length).toBe(5);
  const [wall = 0, monotonic = 0, step = 0, back = 0, slept = 0] = numbers;
  return { wall, monotonic, step, back, slept };
}

it(`the clocks of ${CHILDREN} children are right, never step, and sleeps of 10 s take 10 s`, {
  timeout: 400_000,
}, async () => {
  await using source = await template(yaml(), 'clock');
  await using children = await fork(CHILDREN, { snapshot: source.tag });
  const then = await inEach(children.boxes, (box) => sh(box, 'cat /root/then'));
  const watched = await inEach(children.boxes, (box) => watch(box));
  const first = await inEach(children.boxes, (_, at) => watched[at]!.best());
  for (const [at, look] of first.entries()) {
    // Within 100 ms of ours, of what can be known from here.
    expect(look.wall - look.after.wall).toBeLessThan(100);
    expect(look.wall - look.before.wall).toBeGreaterThan(-100);
    // Behind nothing that the template saw; nor does it jump by the age of the snapshot.
    const captured = parsed(then[at] ?? '');
    expect(look.monotonic).toBeGreaterThan(captured.monotonic);
    expect(look.monotonic - captured.monotonic).toBeLessThan(300_000);
  }
  // All at once: who sleeps needs no core.
  const slept = await Promise.all(watched.map((one) => one.ask('sleep')));
  for (const look of slept) {
    expect(look.slept).toBeGreaterThanOrEqual(10_000);
    expect(tookOf(look)).toBeGreaterThan(10_000 * (1 - RATE));
  }
  // One that is late is the fault of a busy host; all of them would be ours.
  expect(Math.min(...slept.map(tookOf))).toBeLessThan(10_400);
  const last = await inEach(children.boxes, (_, at) => watched[at]!.best());
  for (const [at, look] of last.entries()) {
    const start = first[at]!;
    const took = look.monotonic - start.monotonic;
    // What passed here in the meantime, at least and at most.
    expect(took).toBeGreaterThan((look.before.monotonic - start.after.monotonic) * (1 - RATE));
    expect(took).toBeLessThan((look.after.monotonic - start.before.monotonic) * (1 + RATE));
    expect({ stepped: look.step < SAMPLE_MS, back: look.back }).toEqual({ stepped: true, back: 0 });
  }
  await Promise.all(watched.map((one) => one.end()));
});
