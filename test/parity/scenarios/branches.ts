import assert from 'node:assert/strict';
import { constants } from 'node:fs';
import { copyFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { eventually } from '../../support/wait.js';
import { drop, dropAllOf, inChild, sh } from '../checks.js';
import type { Scenario } from '../types.js';

/** Whether files of this directory can share blocks. */
async function sharesBlocks(dir: string): Promise<boolean> {
  const [from, to] = [join(dir, 'shares.from'), join(dir, 'shares.to')];
  try {
    await writeFile(from, Buffer.alloc(65_536, 1));
    return await copyFile(from, to, constants.COPYFILE_FICLONE_FORCE).then(
      () => true,
      () => false,
    );
  } finally {
    await Promise.all([from, to].map((path) => rm(path, { force: true })));
  }
}

/** Goes from memory to disk, synced, again and again: what is on the disk is what memory says, or the one before. */
const WRITER = `#!/bin/sh
echo $$ > /dev/shm/writer; i=0
while :; do i=$((i+1)); echo $i > /dev/shm/n.new; mv /dev/shm/n.new /dev/shm/n; echo $i > /root/n.new; mv /root/n.new /root/n; sync; done`;
const STOP_AND_TELL =
  'kill -STOP $(cat /dev/shm/writer); a=$(cat /dev/shm/n); echo 3 > /proc/sys/vm/drop_caches; echo $a $(cat /root/n)';

export const branches: Scenario[] = [
  {
    area: 'branch',
    name: 'live, diff and full hold the same, and each answer says which it was',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await sh(
        box,
        'head -c 3000000 /dev/urandom > /dev/shm/x; cp /dev/shm/x /root/x; sync; sha256sum < /root/x > /root/sum',
      );
      const check =
        'cat /dev/shm/x | sha256sum | diff - /root/sum && sha256sum < /root/x | diff - /root/sum && echo same';
      for (const mode of ['live', 'diff', 'full'] as const) {
        const info = await box.branch({ mode });
        assert.equal(info.mode, mode, info.mode_reason);
        const { chain_depth } = await stage.client.snapshots.get(info.id);
        assert.equal(chain_depth === 0, mode === 'full', `${mode}: ${chain_depth} layers`);
        assert.equal(await inChild(stage, info.id, check), 'same', mode);
      }
      assert.equal(await sh(box, check), 'same');
      await dropAllOf(stage, box.id);
    },
  },
  {
    area: 'branch',
    name: 'disk and memory are of one instant while the guest writes and syncs all the time',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await box.files.write('/dev/shm/write', Buffer.from(WRITER));
      await sh(box, 'sh /dev/shm/write >/dev/null 2>&1 & while ! test -s /root/n; do sleep 0.1; done');
      for (let round = 0; round < 3; round++) {
        const { id } = await box.branch();
        const [memory, disk] = (await inChild(stage, id, STOP_AND_TELL)).split(' ').map(Number);
        assert.ok(memory !== undefined && disk !== undefined && memory > 0, `${memory} ${disk}`);
        assert.ok(memory - disk === 0 || memory - disk === 1, `memory has ${memory}, the disk ${disk}`);
      }
      const [before] = (await sh(box, 'cat /dev/shm/n')).split(' ').map(Number);
      await eventually(
        async () => (Number(await sh(box, 'cat /dev/shm/n')) > before! ? true : undefined),
        20_000 * stage.slowness,
      );
      await dropAllOf(stage, box.id);
    },
  },
  {
    area: 'branch',
    name: 'a disk that takes long to copy makes a pause that says so, with numbers; one that need not be copied does not',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      const copied = stage.engine === 'firecracker' && !(await sharesBlocks(stage.home));
      const mib = copied ? 70 : 8;
      await sh(
        box,
        `dd if=/dev/zero of=/root/zeros bs=1M count=${mib} 2>/dev/null; echo kept > /root/kept; sync`,
      );
      const info = await box.branch();
      assert.equal(info.mode, copied ? 'diff' : 'live', info.mode_reason);
      if (copied) assert.match(info.mode_reason ?? '', /the disk has \d+ MiB.* at most 64 MiB/);
      assert.equal(
        await inChild(stage, info.id, 'wc -c < /root/zeros; cat /root/kept'),
        `${mib << 20}\nkept`,
      );
      await drop(stage, info.id);
    },
  },
  {
    area: 'branch',
    name: 'a terminal that is used through branches loses nothing and repeats nothing',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      const terminal = await box.run(
        { shell: 'stty -echo; echo ready; exec cat' },
        { pty: { rows: 24, cols: 80 } },
      );
      let seen = '';
      terminal.stdout.on('data', (chunk: Buffer) => {
        seen += chunk.toString('utf8');
      });
      await eventually(async () => (seen === 'ready\r\n' ? true : undefined), 20_000 * stage.slowness);
      const lines: string[] = [];
      for (let round = 0; round < 3; round++) {
        // Typed while the branch is taken.
        const branching = box.branch();
        for (let n = 0; n < 50; n++) {
          lines.push(`line ${round}-${n}`);
          terminal.stdin?.write(`line ${round}-${n}\n`);
          await new Promise(setImmediate);
        }
        await branching;
      }
      terminal.stdin?.write('\x04');
      assert.equal((await terminal.wait()).exitCode, 0);
      assert.deepEqual(seen.trimEnd().split('\r\n'), ['ready', ...lines]);
      await dropAllOf(stage, box.id);
    },
  },
];
