import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { fork, sh } from '../sandbox/support.js';
import { branch, inChild } from './support.js';

/** Control groups that bound memory, of either version, where they can be made; their files' names. */
const groups = [
  { root: '/sys/fs/cgroup/memory', max: 'memory.limit_in_bytes', current: 'memory.usage_in_bytes' },
  { root: '/sys/fs/cgroup', max: 'memory.max', current: 'memory.current' },
].find(({ root, max }) => {
  const probe = join(root, `forkd-probe-${process.pid}`);
  try {
    mkdirSync(probe);
    const usable = existsSync(join(probe, max));
    rmdirSync(probe);
    return usable;
  } catch {
    return false;
  }
});

/** Runs something with a process in a group that leaves so many bytes. */
async function within<T>(pid: number, leaves: number, work: () => Promise<T>): Promise<T> {
  const { root, max, current } = groups!;
  const dir = join(root, `forkd-test-${process.pid}`);
  const parent = readFileSync(`/proc/${pid}/cgroup`, 'utf8').match(/^\d+:memory:(.*)$/m)?.[1] ?? '/';
  mkdirSync(dir);
  try {
    writeFileSync(join(dir, 'cgroup.procs'), String(pid));
    writeFileSync(join(dir, max), String(Number(readFileSync(join(dir, current), 'utf8')) + leaves));
    return await work();
  } finally {
    writeFileSync(join(root, parent, 'cgroup.procs'), String(pid));
    rmdirSync(dir);
  }
}

describe.skipIf(groups === undefined)('a live branch whose memory limit is too small for the clone', () => {
  it('copies in the pause instead, says why with numbers, and its source runs on', async () => {
    await using children = await fork();
    const { box } = children;
    await sh(
      box,
      'dd if=/dev/urandom of=/dev/shm/much bs=1M count=32 2>/dev/null; md5sum < /dev/shm/much > /dev/shm/sum',
    );
    const { pid } = await box.info();
    if (pid === null) throw new Error('no pid');
    await using small = await within(pid, 16 * 2 ** 20, () => branch(box));
    expect(small.info.mode).toBe('diff');
    expect(small.info.mode_reason).toMatch(
      /^a clone of its memory may cost \d\d MiB more, and the memory limit of its control group leaves \d+ MiB$/,
    );
    const check = 'md5sum < /dev/shm/much | diff - /dev/shm/sum && echo same';
    expect(await sh(box, check)).toBe('same');
    expect(await inChild(small.id, check)).toBe('same');
    await using enough = await within(pid, 256 * 2 ** 20, () => branch(box));
    expect(enough.info).toMatchObject({ mode: 'live' });
    expect(enough.info.mode_reason).toBeUndefined();
  });
});
