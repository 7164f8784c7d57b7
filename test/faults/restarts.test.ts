import { readdirSync, readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { fork, sh } from '../sandbox/support.js';
import { faultHome } from './home.js';

const RESTARTS = 20;

/** Descriptors of a process, but for those of its own machinery that come and go. */
const descriptors = (pid: number) => readdirSync(`/proc/${pid}/fd`).length;

/** Each takes two starts of Node.js, which a busy host makes long. */
const timeout = 400_000;

it(`${RESTARTS} restarts of the daemon, by kill and by request: all that lives is adopted each time, and nothing piles up`, {
  timeout,
}, async () => {
  await using home = await faultHome();
  const { client } = home;
  await using children = await fork(3, {}, client);
  for (const box of children.boxes)
    await sh(
      box,
      '(while :; do echo . >> /dev/shm/ticks; sleep 0.2; done) >/dev/null 2>&1 & echo $$ > /dev/shm/mine',
    );
  const facts = async () => {
    const all = await Promise.all(children.boxes.map((box) => box.info()));
    return all.map(({ id, pid, generation, state, hostname }) => ({ id, pid, generation, state, hostname }));
  };
  const ticks = async () =>
    Promise.all(children.boxes.map(async (box) => Number(await sh(box, 'wc -l < /dev/shm/ticks'))));
  const before = await facts();
  const counts: { descriptors: number; processes: number }[] = [];
  let ticked = await ticks();
  for (let round = 0; round < RESTARTS; round++) {
    await home.end(round % 2 === 0 ? 'SIGKILL' : 'SIGTERM');
    await home.start();
    expect(await facts()).toEqual(before);
    const now = await ticks();
    for (const [index, count] of now.entries()) expect(count).toBeGreaterThan(ticked[index] ?? 0);
    ticked = now;
    counts.push({ descriptors: descriptors(home.pid), processes: home.leftovers().processes.length });
  }
  // Each sandbox has its shim and its VMM, and nobody else is there but the daemon.
  const [first] = counts;
  const last = counts.at(-1);
  if (!first || !last) throw new Error('no round');
  expect(last.processes).toBeLessThanOrEqual(first.processes);
  expect(Math.abs(last.descriptors - first.descriptors)).toBeLessThanOrEqual(3);
  for (const { pid } of before) expect(readFileSync(`/proc/${pid}/comm`, 'utf8')).toMatch(/^qemu/);
});
