import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { parentOf } from '../../support/processes.js';
import { eventually } from '../../support/wait.js';
import { codeOf, drop, dropAllOf, inChild, mark, SAME, settled, sh, snapshotFiles } from '../checks.js';
import type { Scenario } from '../types.js';

export const faults: Scenario[] = [
  {
    area: 'faults',
    name: 'a VMM or shim that is killed ends its sandbox alone, with a reason, and leaves nothing',
    async run(stage) {
      await using children = await stage.fork(3);
      const [first, second, third] = children.boxes;
      assert.ok(first && second && third);
      const [one, two] = [(await first.info()).pid, (await second.info()).pid];
      assert.ok(one && two);
      process.kill(one, 'SIGKILL');
      process.kill(parentOf(two), 'SIGKILL');
      await eventually(
        async () => ((await codeOf(first.exec(['true']))) === 'sandbox_exited' ? true : undefined),
        20_000 * stage.slowness,
      );
      assert.equal(await sh(third, 'echo fine'), 'fine');
      for (const box of [first, second]) {
        await box.kill();
        assert.ok(!existsSync(join(stage.home, 'run', box.id)), `${box.id} left its directory`);
      }
    },
  },
  {
    area: 'faults',
    name: 'a VMM killed amid a branch leaves a whole snapshot or none',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await box.files.write('/dev/shm/x', randomBytes(4_000_000));
      await sh(box, 'sha256sum < /dev/shm/x > /dev/shm/sum');
      const { pid } = await box.info();
      assert.ok(pid);
      const { id } = await box.branch({ wait: false });
      process.kill(pid, 'SIGKILL');
      const status = await settled(stage, id);
      if (status === 'ready')
        assert.equal(
          await inChild(stage, id, 'sha256sum < /dev/shm/x | diff - /dev/shm/sum && echo same'),
          'same',
        );
      assert.deepEqual(snapshotFiles(stage, id), status === 'ready' ? [id] : []);
      await box.kill();
      await drop(stage, id);
    },
  },
  {
    area: 'faults',
    name: 'a guest that ends its machine is told as exited',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      // Firecracker has nothing that could be powered off: its guest ends by the reset of the keyboard controller.
      const end = stage.engine === 'firecracker' ? 'b' : 'o';
      await box
        .exec({ shell: `sync; echo ${end} > /proc/sysrq-trigger; sleep 60` }, { timeoutSecs: 60 })
        .catch(() => undefined);
      await eventually(async () => {
        const { state } = await box.info();
        return state === 'exited' ? true : undefined;
      }, 60_000 * stage.slowness);
    },
  },
  {
    area: 'faults',
    name: 'sandboxes outlive a daemon that is killed amid a branch, which leaves nothing half made; the next one branches and removes them',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await mark(box);
      // Amid the copy, and in or near the pause.
      for (const mode of ['live', 'diff'] as const) {
        const branching = box.branch({ mode, wait: false });
        if (mode === 'live') await branching;
        branching.catch(() => undefined); // Its daemon is killed.
        await stage.crash();
        assert.equal((await box.info()).state, 'running');
        assert.equal(await sh(box, SAME), 'kept');
        assert.deepEqual(
          snapshotFiles(stage).filter((name) => !name.startsWith('sn-')),
          [],
        );
      }
      const { id } = await box.branch();
      assert.equal(await inChild(stage, id, SAME), 'kept');
      await dropAllOf(stage, box.id);
    },
  },
];
