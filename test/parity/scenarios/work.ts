import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import type { Readable } from 'node:stream';
import { eventually } from '../../support/wait.js';
import { codeOf, sh } from '../checks.js';
import type { Scenario } from '../types.js';
import { evaluator } from './evaluator.js';

async function collect(stream: Readable | null): Promise<Buffer> {
  const chunks: Buffer[] = [];
  if (stream) for await (const chunk of stream) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}

export const work: Scenario[] = [
  {
    area: 'streams',
    name: 'output of any bytes arrives exactly, on both sides',
    async run(stage) {
      await using children = await stage.fork();
      const expected = await sh(children.box, 'head -c 2000000 /dev/urandom > /tmp/r; sha256sum < /tmp/r');
      const process = await children.box.run({ shell: 'cat /tmp/r; cat /tmp/r >&2' });
      const [out, err] = await Promise.all([collect(process.stdout), collect(process.stderr)]);
      const exit = await process.wait();
      assert.equal(exit.exitCode, 0);
      for (const bytes of [out, err])
        assert.equal(`${createHash('sha256').update(bytes).digest('hex')}  -`, expected);
    },
  },
  {
    area: 'streams',
    name: 'input of any size arrives, and its end',
    async run(stage) {
      await using children = await stage.fork();
      const input = randomBytes(1_000_000);
      const { stdout } = await children.box.exec(['sha256sum'], { stdin: input, timeoutSecs: 300 });
      assert.equal(stdout, `${createHash('sha256').update(input).digest('hex')}  -\n`);
    },
  },
  {
    area: 'streams',
    name: 'exit code, signal and time-out are told apart, each with the output of before',
    async run(stage) {
      await using children = await stage.fork();
      const run = (end: string, timeoutSecs: number) =>
        children.box.exec({ shell: `echo out; echo err >&2; ${end}` }, { timeoutSecs });
      const secs = Math.ceil(2 + stage.slowness / 3);
      const outcomes = [];
      for (const end of ['exit 3', 'kill -KILL $$', 'sleep 1000']) {
        const { outcome, exit_code, stdout, stderr } = await run(end, secs);
        assert.deepEqual([stdout, stderr], ['out\n', 'err\n'], end);
        outcomes.push([outcome.kind, exit_code]);
      }
      assert.deepEqual(outcomes, [
        ['exited', 3],
        ['signaled', 137],
        ['timeout', 124],
      ]);
    },
  },
  {
    area: 'streams',
    name: 'a terminal echoes, takes ctrl-C, and has the size that it was given',
    async run(stage) {
      await using children = await stage.fork();
      const shell = await children.box.run(['sh'], { pty: { rows: 33, cols: 77 } });
      let seen = '';
      shell.stdout.on('data', (chunk: Buffer) => {
        seen += chunk.toString('utf8');
      });
      const until = (text: string) =>
        eventually(async () => (seen.includes(text) ? true : undefined), 20_000 * stage.slowness);
      shell.stdin?.write('stty size; echo mar""ker\n');
      await until('33 77');
      await until('\nmarker');
      // Told by the command itself: a ctrl-C that comes while the shell still starts it is the shell's.
      shell.stdin?.write('sh -c "echo run""ning; sleep 1000"\n');
      await until('\nrunning');
      shell.stdin?.write('\x03');
      shell.stdin?.write('exit 5\n');
      const exit = await shell.wait();
      assert.equal(exit.exitCode, 5);
    },
  },
  {
    area: 'files',
    name: 'what is written is read, replaced whole, listed, renamed and removed',
    async run(stage) {
      await using children = await stage.fork();
      const { files } = children.box;
      const bytes = randomBytes(1_500_000);
      await files.write('/root/a', bytes);
      assert.ok(bytes.equals(await files.read('/root/a')));
      await files.write('/root/a', Buffer.from('short'));
      assert.equal((await files.read('/root/a')).toString(), 'short');
      await files.mkdir('/root/d/e', { parents: true });
      await files.rename('/root/a', '/root/d/e/ü b');
      assert.deepEqual(
        (await files.list('/root/d/e')).map(({ name }) => name),
        ['ü b'],
      );
      assert.equal((await files.stat('/root/d/e/ü b')).size, 5);
      await files.remove('/root/d', { recursive: true });
      assert.equal(await codeOf(files.read('/root/d/e/ü b')), 'file_not_found');
    },
  },
  {
    area: 'disks',
    name: 'a disk holds what was written to it, through dropped caches, and says when it is full',
    async run(stage) {
      await using children = await stage.fork(2);
      const [first, second] = children.boxes;
      assert.ok(first && second);
      const sum = await sh(first, 'head -c 20000000 /dev/urandom > /root/big; sync; sha256sum < /root/big');
      await sh(first, 'echo 3 > /proc/sys/vm/drop_caches');
      assert.equal(await sh(first, 'sha256sum < /root/big'), sum);
      const full = await first.exec(
        { shell: 'fallocate -l 180M /root/fill && dd if=/dev/zero bs=1M >> /root/fill' },
        { timeoutSecs: 300 },
      );
      assert.equal(full.exit_code, 1);
      assert.match(full.stderr, /No space left/);
      assert.equal(await sh(first, 'rm /root/fill; sha256sum < /root/big'), sum);
      assert.equal(await sh(second, 'ls /root/big /root/fill 2>/dev/null | wc -l'), '0');
    },
  },
  {
    area: 'eval',
    name: 'an interpreter that was warmed in the template answers in each child, from its own state',
    async run(stage) {
      await stage.template('evaluator', evaluator);
      await using children = await stage.fork(2, { snapshot: 'evaluator' });
      const [first, second] = children.boxes;
      assert.ok(first && second);
      assert.equal((await first.eval('count', { timeoutSecs: 120 })).result, '2');
      assert.equal((await first.eval('count', { timeoutSecs: 120 })).result, '3');
      assert.equal((await second.eval('count', { timeoutSecs: 120 })).result, '2');
      assert.equal((await second.eval('where', { timeoutSecs: 120 })).result, second.lastInfo?.hostname);
    },
  },
];
