/** How long sources stand still. */
import type { SnapshotInfo } from '@forkd/api';
import type { Sandbox } from '@forkd/sdk';
import { type Row, repeat, rowOf, type Series } from '../../statistics.js';
import { type BranchBench, BUDGET_MS, MiB, PAGE, template } from './support.js';

/** How long the source stands still, with so much memory of its own. Each branch goes before the next: none is compared with another. */
export async function pause(
  bench: BranchBench,
  name: string,
  mode: 'live' | 'diff' | 'full',
  mib: number,
): Promise<Row> {
  return await bench.withSource(async (box) => {
    if (mib > 0) await bench.scatter(box, (mib * MiB) / PAGE, 1);
    const series = await repeat(
      bench.sizes.pauses,
      1,
      async () => {
        const info = await box.branch({ mode });
        await bench.client.snapshots.removeWithDependents(info.id);
        return pauseOf(info);
      },
      BUDGET_MS,
    );
    return rowOf(name, 'ms', series, `${mib} MiB private, RAM 2 GiB`);
  });
}

/** The longest stall that the guest sees in the 5 s after a live branch, by its own clock; or in 5 s without one, to compare with. */
export async function stall(bench: BranchBench, name: string, branched: boolean): Promise<Row> {
  return await bench.withSource(async (box) => {
    await bench.scatter(box, (64 * MiB) / PAGE, 1);
    const series = await repeat(
      bench.sizes.stalls,
      0,
      async () => {
        const process = await box.run(['/dev/shm/probe', 'stall', '5']);
        process.stderr?.resume();
        let text = '';
        const ready = new Promise<void>((resolve) => {
          process.stdout.on('data', (chunk: Buffer) => {
            text += chunk.toString('latin1');
            resolve();
          });
        });
        await ready;
        const info = branched ? await box.branch() : undefined;
        const { exitCode } = await process.wait();
        if (info) await bench.client.snapshots.removeWithDependents(info.id);
        const [, ...longest] = text.trim().split('\n');
        if (exitCode !== 0 || longest.length !== 2) throw new Error(`the probe said ${text}`);
        return Math.max(...longest.map(Number)) / 1000;
      },
      BUDGET_MS,
    );
    return rowOf(name, 'ms', series, 'longest in 5 s, 1 kHz reader beside a writer');
  });
}

/** Pauses of so many sandboxes that are branched at once. */
export async function atOnce(bench: BranchBench, count: number): Promise<Row> {
  const boxes: Sandbox[] = [];
  const series: Series = { values: [], failures: [] };
  try {
    for (let index = 0; index < count; index++) {
      const box = await bench.source(template);
      boxes.push(box);
      await bench.scatter(box, (16 * MiB) / PAGE, index);
    }
    for (const result of await Promise.allSettled(boxes.map((box) => box.branch())))
      if (result.status === 'fulfilled') series.values.push(pauseOf(result.value));
      else series.failures.push(String(result.reason));
  } finally {
    for (const box of boxes) await bench.removeSource(box);
  }
  return rowOf(`branch_${count}_at_once_pause`, 'ms', series, '16 MiB private each');
}

function pauseOf({ pause_ms }: SnapshotInfo): number {
  if (pause_ms === undefined) throw new Error('the branch tells no pause');
  return pause_ms;
}
