/** What branches of one source cost, one after another. */
import type { Sandbox } from '@forkd/sdk';
import { type Row, singleRow, timed } from '../../statistics.js';
import { type BranchBench, MiB, PAGE } from './support.js';

/** Bytes that a branch takes on disk, to those that a program has changed: 64 MiB. */
export async function linkRatio(bench: BranchBench): Promise<Row> {
  return await bench.withSource(async (box) => {
    await bench.scatter(box, PAGE, 0);
    const before = await box.branch();
    const changed = 64 * MiB;
    await bench.scatter(box, changed / PAGE, 2);
    const { id } = await box.branch();
    const { memory_physical_bytes, disk_physical_bytes } = await bench.client.snapshots.get(id);
    await bench.client.snapshots.removeWithDependents(before.id);
    const ratio = (memory_physical_bytes + disk_physical_bytes) / changed;
    return singleRow('link_disk_ratio', 'ratio', ratio, 'bytes allocated : 64 MiB that were changed');
  });
}

/** The 10th branch of one source with 512 MiB of its own and 16 MiB changed between, to the first of a source with 16 MiB. */
export async function tenth(bench: BranchBench, name: string, what: 'bytes' | 'ms'): Promise<Row> {
  bench.tenth ??= measureTenth(bench);
  return singleRow(name, 'ratio', (await bench.tenth)[what], '10th of 512 + 16 MiB : first of 16 MiB');
}

async function measureTenth(bench: BranchBench): Promise<Record<'bytes' | 'ms', number>> {
  const first = await bench.withSource(async (box) => {
    await bench.scatter(box, (16 * MiB) / PAGE, 1);
    return await costOf(box);
  });
  const last = await bench.withSource(async (box) => {
    await bench.scatter(box, (512 * MiB) / PAGE, 1, 'much');
    let cost = { bytes: 0, ms: 0 };
    for (let branch = 1; branch <= 10; branch++) {
      await bench.scatter(box, (16 * MiB) / PAGE, branch);
      cost = await costOf(box);
    }
    return cost;
  });
  return { bytes: last.bytes / first.bytes, ms: last.ms / first.ms };
}

async function costOf(box: Sandbox): Promise<{ bytes: number; ms: number }> {
  let bytes = 0;
  const ms = await timed(async () => {
    bytes = (await box.branch()).diff_physical_bytes ?? 0;
  });
  return { bytes, ms };
}
