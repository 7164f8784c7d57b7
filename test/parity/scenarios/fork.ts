import assert from 'node:assert/strict';
import { readdirSync, statSync } from 'node:fs';
import { distinct } from '../../support/wait.js';
import { codeOf, sh } from '../checks.js';
import type { Scenario } from '../types.js';

const places = ['/root/mine', '/tmp/mine', '/dev/shm/mine', '/run/mine'];

export const forks: Scenario[] = [
  {
    area: 'fork',
    name: 'children never see what another one writes, in memory or on disk',
    async run(stage) {
      await using children = await stage.fork(3);
      const { boxes } = children;
      const write = (value: string) =>
        `for f in ${places.join(' ')}; do yes ${value} | head -c 100000 > $f; done; sync; echo 3 > /proc/sys/vm/drop_caches`;
      await Promise.all(boxes.map((box) => sh(box, write(box.id))));
      for (const box of boxes) {
        const found = await sh(box, `for f in ${places.join(' ')}; do head -n 1 $f; done | sort -u`);
        assert.equal(found, box.id);
      }
      await using later = await stage.fork();
      assert.equal(await sh(later.box, `ls ${places.join(' ')} 2>/dev/null | wc -l`), '0');
      const verified = await stage.client.snapshots.verify('busybox');
      assert.deepEqual(verified.problems, []);
    },
  },
  {
    area: 'fork',
    name: 'a snapshot is tied to its engine and accelerator, and says so',
    async run(stage) {
      const { engine, accelerator, bootable } = await stage.client.snapshots.get('busybox');
      assert.deepEqual(
        { engine, accelerator, bootable },
        { engine: stage.engine, accelerator: stage.accelerator, bootable: true },
      );
      assert.equal(await codeOf(stage.client.fork({ snapshot: 'not-there' })), 'snapshot_not_found');
    },
  },
  {
    area: 'fork',
    name: 'a VMM of a daemon that is root has a user of its own, and a jail where its engine has one',
    async run(stage) {
      await using children = await stage.fork();
      const { pid } = await children.box.info();
      assert.ok(pid);
      const { uid } = statSync(`/proc/${pid}`);
      const isRoot = process.getuid?.() === 0;
      assert.equal(uid === process.getuid?.(), !isRoot, `the VMM's user is ${uid}`);
      const checks = (await stage.client.host()).checks as { name: string; found: string }[];
      const jailed =
        isRoot &&
        stage.engine === 'firecracker' &&
        checks.some(({ name, found }) => name === 'Firecracker' && / in \S+jailer$/.test(found));
      const seen = readdirSync(`/proc/${pid}/root`);
      assert.deepEqual(
        [seen.includes('usr'), seen.includes('agent.sock')],
        [!jailed, jailed],
        seen.join(' '),
      );
    },
  },
  {
    area: 'hello',
    name: 'children differ in all that says who they are, and in all that is drawn',
    async run(stage) {
      await using children = await stage.fork(4);
      const facts = [
        'cat /run/forkd/generation',
        'hostname',
        'cat /etc/machine-id',
        'head -c 32 /dev/urandom | sha256sum',
        'cat /proc/sys/kernel/random/uuid',
        'mktemp -u',
      ];
      const answers = await Promise.all(children.boxes.map((box) => sh(box, facts.join('; '))));
      const rows = answers.map((answer) => answer.split('\n'));
      for (const [at, fact] of facts.entries())
        assert.equal(distinct(rows.map((row) => row[at])), children.boxes.length, fact);
      for (const [at, box] of children.boxes.entries()) assert.equal(rows[at]?.[0], box.lastInfo?.generation);
    },
  },
  {
    area: 'hello',
    name: 'the environment of a fork reaches every command, exactly',
    async run(stage) {
      await using children = await stage.fork(1, {
        env: { TASK: 'a b', EMPTY: '', LINES: 'one\ntwo', UNI: 'ünï' },
      });
      const seen = await sh(children.box, 'printf "%s|%s|%s|%s" "$TASK" "$EMPTY" "$LINES" "$UNI"');
      assert.equal(seen, 'a b||one\ntwo|ünï');
    },
  },
  {
    area: 'hello',
    name: 'the wall clock is right, and time neither jumps nor goes back',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      const before = Date.now();
      const guest = Number(await sh(box, 'date +%s')) * 1000;
      const after = Date.now();
      assert.ok(guest > before - 2000 && guest < after + 1000, `guest ${guest}, host ${before} to ${after}`);
      const uptimes = (await sh(box, "for i in 1 2 3 4 5; do cut -d' ' -f1 /proc/uptime; done"))
        .split('\n')
        .map(Number);
      assert.deepEqual(
        [...uptimes].sort((a, b) => a - b),
        uptimes,
      );
      const began = performance.now();
      await sh(box, 'sleep 3');
      const slept = (performance.now() - began) / 1000;
      assert.ok(slept > 2.9 && slept < 3 + 2 * stage.slowness, `3 s took ${slept} s`);
    },
  },
];
