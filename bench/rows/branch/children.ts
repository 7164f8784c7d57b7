/** How long it takes until a child of a branch answers. */
import type { Sandbox } from '@forkd/sdk';
import { type Row, repeat, rowOf, timed } from '../../statistics.js';
import { type BranchBench, BUDGET_MS, MiB, PAGE, template } from './support.js';

/**
 * Request for a branch with one child until that child has answered: its hello, with which the request ends, or a first command as well, all of
 * whose code an emulator translates. 16 MiB in scattered pages changed.
 */
export async function grandchild(
  bench: BranchBench,
  name: string,
  answer: 'hello' | 'command',
): Promise<Row> {
  return await bench.withSource(async (box) => {
    await bench.scatter(box, (16 * MiB) / PAGE, 0);
    const series = await repeat(
      bench.sizes.grandchildren,
      1,
      async (index) => {
        await bench.scatter(box, (16 * MiB) / PAGE, index + 10);
        await bench.standbyReady();
        const ids: string[] = [];
        let snapshot: string | undefined;
        try {
          return await timed(async () => {
            const { id, children } = await branchWithChild(box);
            snapshot = id;
            ids.push(...children.map((child) => child.id));
            if (answer === 'command') await children[0]!.exec(['true']);
          });
        } finally {
          for (const id of ids) await bench.client.sandboxes.remove(id);
          if (snapshot) await bench.client.snapshots.removeWithDependents(snapshot);
        }
      },
      BUDGET_MS,
    );
    return rowOf(name, 'ms', series, `16 MiB in scattered pages, standby ready; until its ${answer}`);
  });
}

/** One fork of a snapshot that stands on so many others, until its first answer. */
export async function forkAtDepth(bench: BranchBench, depth: number): Promise<Row> {
  const made: string[] = [];
  let below = template;
  try {
    for (let link = 1; link <= depth; link++)
      await bench.withSource(async (box) => {
        await bench.scatter(box, (4 * MiB) / PAGE, link);
        below = (await box.branch()).id;
        made.push(below);
      }, below);
    const series = await repeat(
      bench.sizes.grandchildren,
      1,
      async () => {
        await bench.standbyReady();
        let box: Sandbox | undefined;
        try {
          return await timed(async () => {
            box = await bench.forkOne(below);
            await box.exec(['true']);
          });
        } finally {
          if (box) await box.kill();
        }
      },
      BUDGET_MS,
    );
    return rowOf(`fork_depth_${depth}`, 'ms', series, 'fork to first answer, standby ready');
  } finally {
    for (const id of made.reverse()) await bench.client.snapshots.removeWithDependents(id);
  }
}

async function branchWithChild(box: Sandbox): Promise<{ id: string; children: Sandbox[] }> {
  const { snapshot, sandboxes } = await box.fork(1);
  return { id: snapshot.id, children: sandboxes };
}
