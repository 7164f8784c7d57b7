/** A guest of more than 3 GiB: its memory is in two ranges of guest addresses, below 3 GiB and from 4 GiB on. */
import type { Manifest } from '@forkd/engine';
import { expect, it } from 'vitest';
import { branch, inChild } from '../branch/support.js';
import { client, fork, sh, template } from '../sandbox/support.js';

const GiB = 2 ** 30;
const MiB = 2 ** 20;

/** What the guest's kernel says of its RAM, in hex: the beginning of each range. */
const RANGES = 'grep "System RAM" /proc/iomem | sed "s/-.*//" | xargs';

/** Bytes that a branch holds of guest memory below 3 GiB and above: offsets in guest RAM, which has no hole. */
async function held(id: string): Promise<{ low: number; high: number }> {
  const { branch } = (await client().snapshots.get(id)).manifest as Manifest;
  const sum = { low: 0, high: 0 };
  for (const { guestOffset, length } of branch?.extents ?? [])
    sum[guestOffset < 3 * GiB ? 'low' : 'high'] += length;
  return sum;
}

it('a guest with memory in two ranges is branched live and in the pause: both hold what it had in either', {
  timeout: 240_000,
}, async () => {
  // The upper range is small: what the guest writes does not fit into it, and goes on in the lower one.
  await using wide = await template('base: busybox\nmemory: 3200M\ndisk: 64M\n', 'wide');
  await using children = await fork(1, { snapshot: wide.tag });
  const { box } = children;
  expect(await sh(box, RANGES)).toMatch(/ 100000000$/);
  const fill = (round: number) =>
    `i=0; while [ $i -lt 48 ]; do (echo ${round} $i; cat /dev/shm/seed) | dd of=/dev/shm/much bs=4M count=1 iflag=fullblock conv=notrunc seek=$i 2>/dev/null; i=$((i+1)); done; md5sum < /dev/shm/much`;
  await sh(box, 'head -c 4194304 /dev/urandom > /dev/shm/seed');
  let sum = '';
  for (const [round, mode] of (['live', 'diff'] as const).entries()) {
    sum = await sh(box, fill(round));
    await using half = await branch(box, { mode });
    expect(half.info).toMatchObject({ mode, status: 'ready' });
    const { low, high } = await held(half.id);
    expect(low, `${mode}: below 3 GiB`).toBeGreaterThan(8 * MiB);
    expect(high, `${mode}: above`).toBeGreaterThan(8 * MiB);
    expect(await inChild(half.id, `${RANGES.replace('xargs', 'tail -n 1')}; md5sum < /dev/shm/much`)).toBe(
      `100000000\n${sum}`,
    );
  }
  expect(await sh(box, 'md5sum < /dev/shm/much')).toBe(sum);
});
