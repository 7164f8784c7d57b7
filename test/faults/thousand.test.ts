/** As many children of the smallest machine as this host carries, up to a thousand; and how one too many is refused. */
import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { ForkdError, type Sandbox } from '@forkd/sdk';
import { expect, it } from 'vitest';
import { build, failureOf, sh } from '../sandbox/support.js';
import { distinct } from '../support/wait.js';
import { faultHome } from './home.js';

/** The least that a guest boots with: at 64 MiB its kernel runs out of memory. */
const yaml = `base: busybox
memory: 96M
disk: 256M
`;
/** Under emulation an idle child takes 0.6 % of a core: some 300 of them leave two cores no time to answer. */
const MOST = Math.min(1000, 100 * availableParallelism());
const patient = { timeoutSecs: 120 };
/** Children of one request. */
const BATCH = 50;
/** Of CPU time until a child has answered, with its share of the end: ms under emulation on a slow host. */
const EACH_MS = 1500;

/** Of /proc/meminfo, MiB. */
const availableMiB = () =>
  Math.floor(Number(/MemAvailable:\s+(\d+)/.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1]) / 1024);

it('a thousand children, or as many as cores and memory carry, each answer; one too many is refused with the numbers', {
  timeout: MOST * EACH_MS,
  retry: 0,
}, async () => {
  await using home = await faultHome();
  const { client } = home;
  const snapshot = await build(yaml, 'smallest', client);
  const boxes: Sandbox[] = [];
  let refused: ForkdError | undefined;
  const before = availableMiB();
  const started = performance.now();
  while (boxes.length < MOST && refused === undefined) {
    const left = Math.min(BATCH, MOST - boxes.length);
    try {
      const { sandboxes, failures } = await client.fork({ snapshot, n: left });
      expect(failures).toEqual([]);
      boxes.push(...sandboxes);
      await Promise.all(sandboxes.map((box) => sh(box, 'true', patient)));
    } catch (error) {
      if (!(error instanceof ForkdError)) throw error;
      refused = error;
    }
  }
  const seconds = (performance.now() - started) / 1000;
  const each = (before - availableMiB()) / boxes.length;
  console.info(
    `${boxes.length} children in ${seconds.toFixed(0)} s, ${each.toFixed(1)} MiB of MemAvailable each`,
  );

  // All of them, the oldest too, are alive and someone else.
  const generations = await Promise.all(boxes.map((box) => sh(box, 'cat /run/forkd/generation', patient)));
  expect(distinct(generations)).toBe(boxes.length);
  if (refused !== undefined) {
    expect(refused).toMatchObject({ code: 'insufficient_memory', status: 507 });
  } else {
    refused = await failureOf(client.fork({ snapshot, n: 1000 }));
    expect(['insufficient_memory', 'limit_reached']).toContain(refused.code);
  }
  expect(refused.message).toMatch(/\d+ children need \d+/);
  expect(refused.remedy).toMatch(/at most \d+|Remove sandboxes|ulimit -n/);
  expect(await client.sandboxes.list()).toHaveLength(boxes.length);
  await Promise.all(boxes.map((box) => box.kill()));
  expect(await client.sandboxes.list()).toEqual([]);
});
