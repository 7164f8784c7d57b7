import assert from 'node:assert/strict';
import { distinct, eventually } from '../../support/wait.js';
import { drop, inChild, sh } from '../checks.js';
import type { Scenario } from '../types.js';
import { evaluator } from './evaluator.js';

export const states: Scenario[] = [
  {
    area: 'branch',
    name: 'a branch holds memory, disk and running processes of one instant; its source goes on',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await sh(
        box,
        'head -c 8000000 /dev/urandom > /dev/shm/x; cp /dev/shm/x /root/x; sync; sha256sum < /root/x > /root/sum; echo before > /tmp/when',
      );
      await sh(
        box,
        '(i=0; while :; do i=$((i+1)); echo $i > /run/tick.new; mv /run/tick.new /run/tick; usleep 50000; done) >/dev/null 2>&1 &',
      );
      const { id, pause_ms } = await box.branch();
      assert.ok(
        pause_ms !== undefined && pause_ms > 0 && pause_ms < 2000 * stage.slowness,
        `pause ${pause_ms} ms`,
      );
      await sh(box, 'echo after > /tmp/when');
      const check =
        'sha256sum < /dev/shm/x | diff - /root/sum && sha256sum < /root/x | diff - /root/sum && cat /tmp/when';
      assert.equal(await inChild(stage, id, check), 'before');
      assert.equal(await sh(box, check), 'after');
      const ticks = 'a=$(cat /run/tick); sleep 1; b=$(cat /run/tick); test "$b" -gt "$a" && echo goes on';
      assert.equal(await sh(box, ticks), 'goes on');
      assert.equal(await inChild(stage, id, ticks), 'goes on');
      await drop(stage, id);
    },
  },
  {
    area: 'branch',
    name: 'branches of branches are as right as the first; zeroed memory stays zero',
    async run(stage) {
      await using children = await stage.fork();
      let box = children.box;
      const ids: string[] = [];
      const held: (typeof children)[] = [];
      for (let depth = 0; depth < 3; depth++) {
        await sh(
          box,
          `echo ${depth} >> /root/log; echo ${depth} >> /dev/shm/log; sync; head -c 2000000 /dev/${depth === 1 ? 'zero' : 'urandom'} > /dev/shm/x; sha256sum < /dev/shm/x > /dev/shm/sum`,
        );
        const { id } = await box.branch();
        ids.push(id);
        const next = await stage.fork(1, { snapshot: id });
        held.push(next);
        box = next.box;
        assert.equal(await sh(box, 'sha256sum < /dev/shm/x | diff - /dev/shm/sum && echo same'), 'same');
      }
      assert.equal(await sh(box, 'cat /root/log /dev/shm/log | xargs'), '0 1 2 0 1 2');
      for (const one of held.reverse()) await one[Symbol.asyncDispose]();
      await children[Symbol.asyncDispose]();
      for (const id of ids.reverse()) await drop(stage, id);
    },
  },
  {
    area: 'branch',
    name: 'one source branched again has all of before, also when the link between was removed',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      await sh(box, 'echo first > /root/first && sync && echo first > /dev/shm/first');
      await drop(stage, (await box.branch()).id);
      await sh(box, 'echo second > /root/second && sync');
      const { id } = await box.branch();
      assert.equal(
        await inChild(stage, id, 'cat /root/first /root/second /dev/shm/first | xargs'),
        'first second first',
      );
      await drop(stage, id);
    },
  },
  {
    area: 'branch',
    name: 'a command that is being read through a branch loses nothing and runs once',
    async run(stage) {
      await using children = await stage.fork();
      const { box } = children;
      const process = await box.run({
        shell: 'i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); usleep 5000; done; echo once >> /root/ran',
      });
      let seen = '';
      process.stdout.on('data', (chunk: Buffer) => {
        seen += chunk.toString('utf8');
      });
      process.stderr?.resume();
      const { id } = await box.branch();
      const exit = await process.wait();
      assert.equal(exit.exitCode, 0);
      assert.equal(seen, Array.from({ length: 400 }, (_, i) => `${i}\n`).join(''));
      assert.equal(await sh(box, 'cat /root/ran'), 'once');
      await drop(stage, id);
    },
  },
  {
    area: 'standby',
    name: 'forks are served from standbys where these are ready, each with an identity of its own',
    async run(stage) {
      const standby = () => stage.client.daemon().then(({ standby }) => standby);
      await using warm = await stage.fork();
      await sh(warm.box, 'true');
      await eventually(
        async () => ((await standby()).process.ready > 0 ? true : undefined),
        60_000 * stage.slowness,
      );
      const before = (await standby()).process.hits;
      await using children = await stage.fork();
      assert.ok((await standby()).process.hits > before, 'no standby was used');
      assert.equal(await sh(children.box, 'cat /run/forkd/generation'), children.box.lastInfo?.generation);
    },
  },
  {
    area: 'standby',
    name: 'a primed child has run before it was asked for; its claim gives it an identity, an environment and the time',
    async run(stage) {
      const snapshot = await stage.template('evaluator', evaluator);
      const primed = () => stage.client.daemon().then(({ standby }) => standby.primed);
      await using warm = await stage.fork(1, { snapshot });
      await eventually(async () => ((await primed()).ready >= 2 ? true : undefined), 60_000 * stage.slowness);
      const before = (await primed()).hits;
      await using children = await stage.fork(2, { snapshot, env: { TASK: 'claimed' } });
      assert.equal((await primed()).hits, before + 2);
      const facts =
        'cat /run/forkd/generation; hostname; head -c 32 /dev/urandom | sha256sum; echo $TASK; date +%s';
      const rows = [];
      for (const box of [warm.box, ...children.boxes]) {
        const row = (await sh(box, facts)).split('\n');
        assert.deepEqual(row.slice(0, 2), [box.lastInfo?.generation, box.lastInfo?.hostname]);
        assert.ok(Math.abs(Number(row[4]) - Date.now() / 1000) < 2 + stage.slowness, `clock ${row[4]}`);
        rows.push(row);
      }
      for (const column of [0, 1, 2]) assert.equal(distinct(rows.map((row) => row[column])), rows.length);
      assert.deepEqual(
        rows.map((row) => row[3]),
        ['', 'claimed', 'claimed'],
      );
      for (const box of children.boxes) {
        assert.equal((await box.eval('count', { timeoutSecs: 120 })).result, '2');
        assert.equal((await box.eval('where', { timeoutSecs: 120 })).result, box.lastInfo?.hostname);
      }
    },
  },
];
