/** What goes wrong while a sandbox is branched: the source runs on unharmed unless it is what was killed, and nothing is left behind. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { Sandbox } from '@forkd/sdk';
import { fill } from '../../support/full-disk.js';
import { childrenOf, parentOf, processesIn, processesOfSession } from '../../support/processes.js';
import { eventually } from '../../support/wait.js';
import { codeOf, drop, dropAllOf, inChild, mark, SAME, settled, sh, snapshotFiles } from '../checks.js';
import type { Scenario, Stage } from '../types.js';

const MiB = 1024 * 1024;

/** The source answers, is as it was, and can be branched. */
async function unharmed(stage: Stage, box: Sandbox, pid: number): Promise<void> {
  const { state, pid: now } = await box.info();
  assert.deepEqual([state, now], ['running', pid]);
  assert.equal(await sh(box, SAME), 'kept');
  // A clone of its VMM belongs to the VMM's session.
  await eventually(() => (processesOfSession(pid).length === 1 ? true : undefined), 20_000 * stage.slowness);
  const { id } = await box.branch();
  assert.equal(await inChild(stage, id, SAME), 'kept');
  await dropAllOf(stage, box.id);
  assert.deepEqual(
    snapshotFiles(stage).filter((name) => !name.startsWith('sn-')),
    [],
  );
}

async function pidOf(box: Sandbox): Promise<number> {
  const { pid } = await box.info();
  assert.ok(pid);
  return pid;
}

/** The shim of a VMM; one that was killed has a successor soon. */
async function shimOf(stage: Stage, box: Sandbox, pid: number): Promise<number> {
  return await eventually(() => {
    const session = processesOfSession(pid);
    return processesIn(join(stage.home, 'run', box.id)).find((one) => !session.includes(one));
  }, 20_000 * stage.slowness);
}

export const branchFaults: Scenario[] = [
  {
    area: 'faults',
    name: 'branches of one source at once are each whole; a tag that two ask for is given to one',
    async run(stage) {
      await using children = await stage.fork(2);
      const [box, other] = children.boxes;
      assert.ok(box && other);
      await Promise.all([mark(box), mark(other)]);
      const both = await Promise.all([box.branch(), box.branch()]);
      for (const { id } of both) assert.equal(await inChild(stage, id, SAME), 'kept');
      const results = await Promise.allSettled(
        [box, other].map((one) => one.branch({ tag: 'asked-for-twice' })),
      );
      const refused = results.flatMap((result) => (result.status === 'rejected' ? [result.reason.code] : []));
      assert.deepEqual(refused, ['tag_exists']);
      for (const one of [box, other]) await dropAllOf(stage, one.id);
    },
  },
  {
    area: 'faults',
    name: 'a source that is removed while it is branched, or right after, leaves a whole branch or none',
    async run(stage) {
      await using children = await stage.fork(2);
      const [during, after] = children.boxes;
      assert.ok(during && after);
      await Promise.all([mark(during), mark(after)]);
      const { id } = await after.branch({ wait: false });
      await after.kill();
      assert.equal(await settled(stage, id), 'ready');
      assert.equal(await inChild(stage, id, SAME), 'kept');
      const branching = during.branch().then(
        (info) => info.id,
        (error: { code: string }) => error.code,
      );
      await during.kill();
      const result = await branching;
      if (result.startsWith('sn-')) assert.equal(await inChild(stage, result, SAME), 'kept');
      else {
        assert.ok(['sandbox_not_running', 'sandbox_not_found', 'sandbox_exited'].includes(result), result);
        const left = (await stage.client.snapshots.list()).filter((one) => one.branched_from === during.id);
        assert.deepEqual(left, []);
      }
      for (const one of [during, after]) await dropAllOf(stage, one.id);
    },
  },
  {
    area: 'faults',
    name: 'a shim killed at any moment of a branch leaves its source running, which is branched again',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await mark(box);
      const pid = await pidOf(box);
      for (const mode of ['live', 'diff'] as const) {
        const began = performance.now();
        await drop(stage, (await box.branch({ mode })).id);
        const took = performance.now() - began;
        for (const part of [0.2, 0.5, 0.8]) {
          const shim = await shimOf(stage, box, pid);
          let failure = '';
          const branching = box.branch({ mode, wait: false }).then(
            ({ id }) => id,
            (error: { code: string; message: string }) => {
              failure = `${mode} at ${part}: ${error.message}`;
              return error.code;
            },
          );
          await new Promise((resolve) => setTimeout(resolve, took * part));
          process.kill(shim, 'SIGKILL');
          const result = await branching;
          if (!result.startsWith('sn-')) assert.equal(result, 'vmm_failed', `${result}: ${failure}`);
          else if ((await settled(stage, result)) === 'ready')
            assert.equal(await inChild(stage, result, SAME), 'kept');
        }
      }
      await unharmed(stage, box, pid);
    },
  },
  {
    area: 'faults',
    name: 'a clone killed amid its copy fails that branch alone',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await mark(box);
      const pid = await pidOf(box);
      const { id, mode } = await box.branch({ wait: false });
      assert.equal(mode, 'live');
      for (const clone of childrenOf(parentOf(pid))) if (clone !== pid) process.kill(clone, 'SIGKILL');
      // What was copied before it died is whole.
      if ((await settled(stage, id)) === 'ready') assert.equal(await inChild(stage, id, SAME), 'kept');
      else {
        assert.deepEqual(snapshotFiles(stage, id), []);
        assert.equal(await codeOf(stage.client.fork({ snapshot: id })), 'snapshot_not_ready');
      }
      await unharmed(stage, box, pid);
    },
  },
  {
    area: 'faults',
    name: 'a branch on a full disk fails with that reason and leaves nothing',
    needs: 'own-disk',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await mark(box);
      const pid = await pidOf(box);
      const before = snapshotFiles(stage);
      for (const mode of ['live', 'diff'] as const) {
        // State and disk fit, and the beginning of the layer.
        using _full = fill(stage.home, 2 * MiB);
        assert.equal(await codeOf(box.branch({ mode })), 'insufficient_disk');
        assert.deepEqual(snapshotFiles(stage), before);
      }
      await unharmed(stage, box, pid);
    },
  },
];
