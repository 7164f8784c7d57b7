import { randomBytes } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { client, fork, sh } from '../sandbox/support.js';
import { branch, dropAllOf, inChild } from './support.js';

const mebibyte = 1024 * 1024;

describe('a branch', () => {
  it('has memory and synced disk of its instant; what the source writes later is not in it', async () => {
    await using children = await fork();
    const { box } = children;
    await sh(
      box,
      'echo one > /root/disk && sync && echo one > /dev/shm/memory && echo cached > /root/cached',
    );
    await using half = await branch(box);
    await sh(box, 'echo two > /root/disk && sync && echo two > /dev/shm/memory && rm /root/cached');
    const look = 'cat /root/disk /dev/shm/memory; cat /root/cached 2>/dev/null || echo none; hostname';
    expect(await sh(box, look)).toBe(`two\ntwo\nnone\n${box.id}`);
    await using grandchildren = await fork(1, { snapshot: half.id });
    expect(await sh(grandchildren.box, look)).toBe(`one\none\ncached\n${grandchildren.box.id}`);
    await sh(grandchildren.box, 'echo three > /root/disk && sync');
    expect(await sh(box, 'cat /root/disk')).toBe('two');
    expect(half.info).toMatchObject({ status: 'ready', bootable: true, branched_from: box.id });
    expect(await box.info()).toMatchObject({ state: 'running', has_branched: true });
  });

  it('lets the processes of its source go on, in both', async () => {
    await using children = await fork();
    const { box } = children;
    const process = await box.run(
      { shell: 'i=0; while true; do i=$((i+1)); echo $i > /dev/shm/i; sleep 0.05; done' },
      { keep: true },
    );
    await sh(box, 'until [ -s /dev/shm/i ]; do sleep 0.1; done');
    await using half = await branch(box);
    const goesOn =
      'a=$(cat /dev/shm/i); until [ "$(cat /dev/shm/i)" -gt "$a" ]; do sleep 0.1; done; echo yes';
    expect(await sh(box, goesOn)).toBe('yes');
    await using grandchildren = await fork(1, { snapshot: half.id });
    expect(await sh(grandchildren.box, goesOn)).toBe('yes');
    const listed = await grandchildren.box.processes();
    expect(listed.some(({ pid, running }) => pid === process.pid && running)).toBe(true);
    process.signal('SIGKILL');
  });

  it('has the output of its processes: who attaches in a child gets what comes, and is told what came before', async () => {
    await using children = await fork();
    const { box } = children;
    const process = await box.run(
      { shell: 'i=0; while true; do i=$((i+1)); echo "line $i of many"; sleep 0.01; done' },
      { keep: true },
    );
    process.stderr?.resume();
    // The source's own reader has had these: they are not in the guest any more.
    let read = '';
    await new Promise<void>((enough) => {
      process.stdout.on('data', (chunk: Buffer) => {
        read += chunk.toString('latin1');
        if (read.length > 500) enough();
      });
    });
    await using half = await branch(box);
    await using grandchildren = await fork(1, { snapshot: half.id });
    const attached = await grandchildren.box.attach(process.handle);
    attached.stderr?.resume();
    const gaps: { from: number; to: number }[] = [];
    attached.stdout.on('gap', (gap: { from: number; to: number }) => gaps.push(gap));
    let text = '';
    await new Promise<void>((enough) => {
      attached.stdout.on('data', (chunk: Buffer) => {
        text += chunk.toString('latin1');
        if (text.length > 500) enough();
      });
    });
    attached.signal('SIGKILL');
    process.signal('SIGKILL');
    const from = gaps[0]?.to ?? 0;
    expect(gaps).toEqual(from === 0 ? [] : [{ from: 0, to: from }]);
    const all = Array.from({ length: 20_000 }, (_, index) => `line ${index + 1} of many\n`).join('');
    expect(text).toBe(all.slice(from, from + text.length));
  });

  it('loses and repeats no byte of a stream of its source', async () => {
    await using children = await fork();
    const { box } = children;
    const count = 12_000;
    const process = await box.run({ shell: `i=0; while [ $i -lt ${count} ]; do echo $i; i=$((i+1)); done` });
    process.stderr?.resume();
    let text = '';
    const first = new Promise<void>((resolve) => {
      process.stdout.on('data', (chunk: Buffer) => {
        text += chunk.toString('latin1');
        resolve();
      });
    });
    await first;
    for (let round = 0; round < 3; round++) await box.branch();
    const { exitCode } = await process.wait();
    if (!process.stdout.readableEnded) await new Promise((resolve) => process.stdout.once('end', resolve));
    expect(exitCode).toBe(0);
    expect(text === Array.from({ length: count }, (_, index) => `${index}\n`).join('')).toBe(true);
    await children[Symbol.asyncDispose]();
    await dropAllOf(box.id);
  });

  it('costs what changed since the one before it, ten times over', async () => {
    await using children = await fork();
    const { box } = children;
    await box.files.write('/dev/shm/much', randomBytes(16 * mebibyte));
    const sizes: number[] = [];
    const before = await branch(box);
    try {
      expect(before.info.diff_logical_bytes).toBeGreaterThan(16 * mebibyte);
      for (let round = 0; round < 9; round++) {
        await box.files.write('/dev/shm/little', randomBytes(2 * mebibyte));
        const { diff_physical_bytes = 0 } = await box.branch();
        sizes.push(diff_physical_bytes);
      }
      for (const size of sizes) expect(size).toBeLessThan(8 * mebibyte);
      const last = (await client().snapshots.list()).find(({ branched_from }) => branched_from === box.id);
      expect(await inChild(last?.id ?? '', 'wc -c < /dev/shm/much')).toBe(String(16 * mebibyte));
    } finally {
      await before[Symbol.asyncDispose]();
    }
  });

  it('of a branch of a branch has what each of them has written', async () => {
    await using one = await fork();
    await sh(one.box, 'echo 1 > /root/one && sync && echo 1 > /dev/shm/one');
    await using first = await branch(one.box);
    await using two = await fork(1, { snapshot: first.id });
    await sh(two.box, 'echo 2 > /root/two && sync && echo 2 > /dev/shm/two');
    await using second = await branch(two.box);
    await using three = await fork(1, { snapshot: second.id });
    await sh(three.box, 'echo 3 > /root/three && rm /root/one && sync && echo 3 > /dev/shm/three');
    await using third = await branch(three.box);
    const seen = await inChild(
      third.id,
      'cd /root; cat /dev/shm/one /dev/shm/two /dev/shm/three two three | xargs; ls | xargs',
    );
    expect(seen).toBe('1 2 3 2 3\nthree two');
    const { chain_depth, ancestors, parent_tag } = await client().snapshots.get(third.id);
    expect({ chain_depth, parent_tag }).toEqual({ chain_depth: 3, parent_tag: second.id });
    expect(ancestors.slice(1)).toEqual([first.id, second.id]);
  });

  it('keeps pages that were zeroed over pages of the snapshot below, also in the branch after it', async () => {
    await using one = await fork();
    await sh(
      one.box,
      'tr "\\0" x < /dev/zero | dd of=/dev/shm/page bs=4096 count=512 iflag=fullblock 2>/dev/null',
    );
    await using full = await branch(one.box);
    const count = 'wc -c < /dev/shm/page; tr -d "\\0" < /dev/shm/page | wc -c';
    await sh(one.box, 'dd if=/dev/zero of=/dev/shm/page bs=4096 count=256 conv=notrunc 2>/dev/null');
    await using zeroed = await branch(one.box);
    await using again = await branch(one.box);
    const half = `${512 * 4096}\n${256 * 4096}`;
    expect(await inChild(full.id, count)).toBe(`${512 * 4096}\n${512 * 4096}`);
    expect(await inChild(zeroed.id, count)).toBe(half);
    await using children = await fork(1, { snapshot: again.id });
    expect(await sh(children.box, count)).toBe(half);
    await using grandchild = await branch(children.box);
    expect(await inChild(grandchild.id, count)).toBe(half);
  });
});
