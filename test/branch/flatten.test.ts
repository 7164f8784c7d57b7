import { execFileSync } from 'node:child_process';
import { randomBytes, randomFillSync } from 'node:crypto';
import { readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { SnapshotDetail } from '@forkd/api';
import { describe, expect, it } from 'vitest';
import { client, fork, sh } from '../sandbox/support.js';
import { branch, drop, dropAllOf, inChild } from './support.js';

/** Puts a copy of a snapshot's files in their place, made by a tool that turns all zeros into holes. */
function copySparsely({ dir }: { dir: string }): void {
  const copy = `${dir}.copy`;
  execFileSync('cp', ['-a', '--sparse=always', dir, copy]);
  rmSync(dir, { recursive: true });
  renameSync(copy, dir);
}

/** A checksum of what a guest sees of its memory and disk files. */
const look = 'cat /dev/shm/* /root/* | md5sum';

async function standsOn(id: string): Promise<Pick<SnapshotDetail, 'chain_depth' | 'ancestors' | 'status'>> {
  const { chain_depth, ancestors, status } = await client().snapshots.get(id);
  return { chain_depth, ancestors, status };
}

const alone = { chain_depth: 0, ancestors: [], status: 'ready' };

/** Each forks and copies several times: minutes on a host that others load as well. */
const long = { timeout: 240_000 };

describe('flattening', long, () => {
  it('keeps pages that were zeroed over others, through a branch, another, and copies that make holes', async () => {
    await using one = await fork();
    const { box } = one;
    await sh(
      box,
      'tr "\\0" x < /dev/zero | dd of=/dev/shm/page bs=4096 count=512 iflag=fullblock 2>/dev/null',
    );
    await using full = await branch(box);
    await sh(box, 'dd if=/dev/zero of=/dev/shm/page bs=4096 count=256 conv=notrunc 2>/dev/null');
    await using zeroed = await branch(box);
    await sh(box, 'echo last > /dev/shm/last');
    await using again = await branch(box);
    const count = 'tr -d "\\0" < /dev/shm/page | wc -c';
    const half = String(256 * 4096);
    for (const { info } of [full, zeroed, again]) copySparsely(info);
    expect(await inChild(again.id, count)).toBe(half);
    await client().snapshots.flatten(zeroed.id);
    expect(await standsOn(zeroed.id)).toEqual(alone);
    copySparsely(zeroed.info);
    expect(await inChild(zeroed.id, count)).toBe(half);
    // What stands on it goes on to, and its source is compared with what it is now.
    expect(await inChild(again.id, `${count}; cat /dev/shm/last`)).toBe(`${half}\nlast`);
    await using next = await branch(box);
    expect(await inChild(next.id, `${count}; cat /dev/shm/last`)).toBe(`${half}\nlast`);
    expect(readdirSync(zeroed.info.dir).sort()).toEqual([
      'base',
      'durable',
      'manifest.json',
      'state',
      'whole',
    ]);
    expect((await client().snapshots.verify(zeroed.id)).ok).toBe(true);
  });

  it('keeps scattered pages of memory, and the disk', async () => {
    await using one = await fork();
    const { box } = one;
    const much = randomBytes(2 * 1024 * 1024);
    await box.files.write('/dev/shm/much', much);
    await sh(box, 'cp /dev/shm/much /root/much; sync');
    await using first = await branch(box);
    // Every fifth page of the file gets other bytes; those between are written again as they were.
    for (let page = 0; page < much.length / 4096; page += 5) randomFillSync(much, page * 4096, 8);
    await box.files.write('/tmp/next', much);
    await sh(
      box,
      'dd if=/tmp/next of=/dev/shm/much bs=1M conv=notrunc 2>/dev/null; rm /tmp/next; ' +
        'dd if=/dev/zero of=/root/much bs=64k seek=3 count=7 conv=notrunc 2>/dev/null; echo x > /root/other; sync',
    );
    await using second = await branch(box);
    const seen = await sh(box, look);
    expect(await inChild(second.id, look)).toBe(seen);
    await client().snapshots.flatten(second.id);
    expect(await inChild(second.id, look)).toBe(seen);
    // What it stood on is of no use to it any more.
    await drop(first.id);
    expect(await inChild(second.id, look)).toBe(seen);
  });

  it('changes nothing for those that fork at the same time', async () => {
    await using one = await fork();
    await sh(
      one.box,
      'dd if=/dev/urandom of=/dev/shm/much bs=1M count=16 2>/dev/null; echo disk > /root/disk; sync',
    );
    await using first = await branch(one.box);
    await sh(one.box, 'echo more > /dev/shm/more');
    await using second = await branch(one.box);
    const seen = await sh(one.box, look);
    let flat = false;
    const flattening = client()
      .snapshots.flatten(second.id)
      .finally(() => {
        flat = true;
      });
    const sums: string[] = [];
    do sums.push(await inChild(second.id, look));
    while (!flat);
    await flattening;
    sums.push(await inChild(second.id, look));
    expect(new Set(sums)).toEqual(new Set([seen]));
    expect(await standsOn(second.id)).toEqual(alone);
    await using third = await branch(one.box);
    expect(await inChild(third.id, look)).toBe(seen);
    expect((await client().snapshots.get(third.id)).ancestors).toEqual([second.id]);
    await drop(first.id);
  });

  it('of a template, or of one that stands alone, does nothing', async () => {
    const { id, manifest } = await client().snapshots.get('busybox');
    const after = await client().snapshots.flatten('busybox');
    expect({ id: after.id, manifest: after.manifest }).toEqual({ id, manifest });
  });
});

describe('a branch in mode full', long, () => {
  it('stands alone, also when its source was branched before', async () => {
    await using one = await fork();
    const { box } = one;
    await sh(box, 'echo 1 > /dev/shm/one; echo 1 > /root/one; sync');
    await using before = await branch(box);
    await sh(box, 'echo 2 > /dev/shm/two; echo 2 > /root/two; sync');
    await using full = await branch(box, { mode: 'full' });
    const seen = await sh(box, look);
    expect(full.info).toMatchObject({ mode: 'full', status: 'ready' });
    expect(await standsOn(full.id)).toEqual(alone);
    await drop(before.id);
    expect(await inChild(full.id, look)).toBe(seen);
    await sh(box, 'echo 3 > /dev/shm/three; echo 3 > /root/three; sync');
    await using after = await branch(box);
    const later = await sh(box, look);
    expect(await inChild(after.id, look)).toBe(later);
    expect(after.info.diff_physical_bytes).toBeLessThan(32 * 1024 * 1024);
  });
});

describe('a chain of twenty', () => {
  it('branches of one source can be had, each as it was', { timeout: 300_000 }, async () => {
    await using one = await fork();
    const { box } = one;
    const ids: string[] = [];
    for (let round = 1; round <= 20; round++) {
      await sh(box, `echo ${round} > /dev/shm/round; echo ${round} > /root/round-${round}; sync`);
      ids.push((await box.branch()).id);
    }
    const seen = 'cat /dev/shm/round; ls /root | wc -l; cat /root/round-1';
    for (const round of [20, 1, 13])
      expect(await inChild(ids[round - 1]!, seen)).toBe(`${round}\n${round}\n1`);
    const depths = await Promise.all(ids.map(async (id) => (await standsOn(id)).chain_depth));
    expect(Math.max(...depths)).toBeLessThan(16);
    // What the source's disk looks through is bounded as well.
    const overlays = readdirSync(join(process.env.FORKD_HOME!, 'run', box.id)).filter((name) =>
      /^(overlay|whole|disk)/.test(name),
    );
    expect(overlays.length).toBeLessThan(17);
    await one[Symbol.asyncDispose]();
    await dropAllOf(box.id);
  });

  it('branches of one source can be had and removed, one after another: it does not come to look through more and more files', {
    timeout: 300_000,
  }, async () => {
    await using one = await fork();
    const { box } = one;
    const files = (dir: string): number =>
      readdirSync(dir).filter((name) => /^(overlay|whole|disk)/.test(name)).length;
    const most = { source: 0, snapshot: 0 };
    for (let round = 1; round <= 20; round++) {
      await sh(box, `echo ${round} > /dev/shm/round; echo ${round} > /root/round-${round}; sync`);
      await using made = await branch(box);
      most.snapshot = Math.max(most.snapshot, files(made.info.dir));
      most.source = Math.max(most.source, files(join(process.env.FORKD_HOME!, 'run', box.id)));
    }
    expect(most.snapshot).toBeLessThan(8);
    expect(most.source).toBeLessThan(10);
    const seen =
      'cat /dev/shm/round; ls /root | wc -l; cat /root/round-* | sort -n | xargs; dmesg | grep -ci "ext4.*error" || true';
    const all = Array.from({ length: 20 }, (_, index) => index + 1).join(' ');
    await using last = await branch(box);
    expect(await inChild(last.id, seen)).toBe(`20\n20\n${all}\n0`);
    expect(await sh(box, seen)).toBe(`20\n20\n${all}\n0`);
  });

  it('branches of branches can be had', { timeout: 300_000 }, async () => {
    let below = 'busybox';
    const made: string[] = [];
    for (let round = 1; round <= 20; round++) {
      await using children = await fork(1, { snapshot: below });
      await sh(children.box, `echo ${round} >> /dev/shm/rounds; echo ${round} >> /root/rounds; sync`);
      below = (await children.box.branch()).id;
      made.push(below);
    }
    expect(await inChild(below, 'wc -l < /dev/shm/rounds; wc -l < /root/rounds')).toBe('20\n20');
    expect((await standsOn(below)).chain_depth).toBeLessThan(16);
    for (const id of made.reverse()) await drop(id);
  });
});
