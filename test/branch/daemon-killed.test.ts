import { randomBytes } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { createConnection } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { describe, expect, it } from 'vitest';
import { ownHome } from '../sandbox/home.js';
import { fork, sh } from '../sandbox/support.js';
import { branch, drop, dropAllOf, inChild } from './support.js';

describe('a daemon that is killed', () => {
  it('amid a branch leaves the source running and nothing half made; the next one tells of it', async () => {
    await using home = await ownHome();
    await using children = await fork(1, {}, home.client);
    const { box } = children;
    await box.files.write('/dev/shm/x', randomBytes(16 * 1024 * 1024));
    await sh(box, 'echo kept > /root/kept && sync; md5sum < /dev/shm/x > /dev/shm/sum');
    const { id } = await box.branch({ wait: false, tag: 'broken-off' });
    await home.crash();
    await home.start();
    expect(await box.info()).toMatchObject({ state: 'running' });
    expect(await sh(box, 'md5sum < /dev/shm/x | diff - /dev/shm/sum && cat /root/kept')).toBe('kept');
    const snapshots = readdirSync(join(home.path, 'snapshots'));
    expect(snapshots.filter((name) => !name.startsWith('sn-'))).toEqual([]);
    const all = await home.client.snapshots.list();
    const told = all.find((snapshot) => snapshot.id === id);
    // It was written before the kill, and then has its tag, or it has failed.
    expect(told?.status).toBe(snapshots.includes(id) ? 'ready' : 'failed');
    // A branch of the sandbox that was taken over has what it wrote before and after.
    const next = await box.branch(told?.status === 'failed' ? { tag: 'broken-off' } : {});
    expect(
      await inChild(next.id, 'md5sum < /dev/shm/x | diff - /dev/shm/sum && cat /root/kept', home.client),
    ).toBe('kept');
    await children[Symbol.asyncDispose]();
    await dropAllOf(box.id, home.client);
  });

  it('leaves snapshots and their tags to the next one, which does not tag branches, and branches their source again', async () => {
    await using home = await ownHome();
    await using children = await fork(1, {}, home.client);
    await children.box.branch({ tag: 'named' });
    const { id } = await children.box.branch();
    await home.crash();
    await home.start();
    const { tags, branched_from, chain_depth } = await home.client.snapshots.get(id);
    expect({ tags, branched_from, chain_depth }).toEqual({
      tags: [],
      branched_from: children.box.id,
      chain_depth: 2,
    });
    expect(await home.client.snapshots.get('named')).toMatchObject({ dependents: [id] });
    expect(await children.box.branch()).toMatchObject({ status: 'ready' });
  });

  it('amid work on the disk of a source leaves that to the next one, which ends it and branches', async () => {
    await using home = await ownHome();
    await using children = await fork(1, {}, home.client);
    const { box } = children;
    await sh(box, 'head -c 4000000 /dev/urandom > /root/x; md5sum < /root/x > /root/sum; sync');
    await drop((await box.branch()).id, home.client);
    // As after several branches that were removed, but so slow that it does not end.
    const work = { 'job-id': 'gather', device: 'overlay-1', 'base-node': 'below-0', speed: 1 };
    await command(join(home.path, 'run', box.id), 'block-stream', { ...work, 'backing-file': '' });
    await home.crash();
    await home.start();
    await sh(box, 'echo on > /root/on; sync');
    await using next = await branch(box, {}, home.client);
    const look = 'md5sum < /root/x | diff - /root/sum && cat /root/on';
    expect(await inChild(next.id, look, home.client)).toBe('on');
    expect(await sh(box, look)).toBe('on');
    await children[Symbol.asyncDispose]();
  });
});

/** Gives a VMM a command by the monitor of its shim, which must not be in use. */
async function command(dir: string, execute: string, args: Record<string, unknown>): Promise<void> {
  const socket = createConnection(join(dir, 'qmp-shim.sock'));
  try {
    const lines = createInterface({ input: socket })[Symbol.asyncIterator]();
    const answer = async () => JSON.parse((await lines.next()).value) as Record<string, unknown>;
    expect(await answer()).toHaveProperty('QMP');
    for (const line of [{ execute: 'qmp_capabilities' }, { execute, arguments: args }]) {
      socket.write(`${JSON.stringify(line)}\n`);
      let said = await answer();
      while ('event' in said) said = await answer();
      expect(said).toHaveProperty('return');
    }
  } finally {
    socket.destroy();
  }
}
