import assert from 'node:assert/strict';
import type { Manifest } from '@forkd/engine';
import { drop, inChild, sh } from '../checks.js';
import type { Scenario, Stage } from '../types.js';

const MiB = 2 ** 20;
const GiB = 2 ** 30;

/** 128 MiB of it are above 4 GiB, of which the kernel needs some: what a guest writes does not fit there, and goes on below 3 GiB. */
const WIDE = 'base: busybox\nmemory: 3200M\ndisk: 64M\n';
const WRITTEN_MIB = 112;

/** What the guest's kernel says of its RAM: the beginning of the last range, in hex. */
const LAST_RANGE = 'grep "System RAM" /proc/iomem | tail -n 1 | sed "s/-.*//;s/ //g"';

/** Bytes that a branch holds of guest memory below 3 GiB and above: offsets in guest RAM, which has no hole. */
async function held(stage: Stage, id: string): Promise<{ low: number; high: number }> {
  const { branch } = (await stage.client.snapshots.get(id)).manifest as Manifest;
  const sum = { low: 0, high: 0 };
  for (const { guestOffset, length } of branch?.extents ?? [])
    sum[guestOffset < 3 * GiB ? 'low' : 'high'] += length;
  return sum;
}

export const wide: Scenario[] = [
  {
    area: 'branch',
    name: 'a guest with memory below 3 GiB and above 4 is branched live and in the pause',
    async run(stage) {
      const snapshot = await stage.template('wide', WIDE);
      await using children = await stage.fork(1, { snapshot });
      const { box } = children;
      assert.equal(await sh(box, LAST_RANGE), '100000000');
      const fill = (round: number) =>
        `i=0; while [ $i -lt ${WRITTEN_MIB / 4} ]; do (echo ${round} $i; cat /dev/shm/seed) | dd of=/dev/shm/much bs=4M count=1 iflag=fullblock conv=notrunc seek=$i 2>/dev/null; i=$((i+1)); done; md5sum < /dev/shm/much`;
      await sh(box, 'head -c 4194304 /dev/urandom > /dev/shm/seed');
      let sum = '';
      for (const [round, mode] of (['live', 'diff'] as const).entries()) {
        sum = await sh(box, fill(round));
        const info = await box.branch({ mode });
        assert.equal(info.mode, mode, info.mode_reason);
        const { low, high } = await held(stage, info.id);
        assert.ok(low > 8 * MiB && high > 8 * MiB, `${mode}: ${low} bytes below 3 GiB, ${high} above`);
        assert.equal(
          await inChild(stage, info.id, `${LAST_RANGE}; md5sum < /dev/shm/much`),
          `100000000\n${sum}`,
          mode,
        );
        await drop(stage, info.id);
      }
      assert.equal(await sh(box, 'md5sum < /dev/shm/much'), sum);
    },
  },
];
