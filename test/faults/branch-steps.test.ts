import { randomBytes } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { dropAllOf, inChild } from '../branch/support.js';
import { client, fork, sh } from '../sandbox/support.js';
import { sharedHome } from '../support/home.js';
import { parentOf, processesIn } from '../support/processes.js';
import { eventually } from '../support/wait.js';
import { Between, type Step } from './monitor.js';

const steps: Step[] = [
  'before qmp_capabilities',
  'before stop',
  'after stop',
  'before blockdev-snapshot',
  'after blockdev-snapshot',
  'before xen-save-devices-state',
  // From here the memory is frozen: its clone may be half made.
  'after xen-save-devices-state',
  'before cont',
  'after cont',
];

describe('a shim that is killed in a branch', () => {
  it.each(steps)('%s: the branch fails, its source runs on, and the next branch has it all', async (at) => {
    await using children = await fork();
    const { box } = children;
    const { pid } = await box.info();
    if (pid === null) throw new Error('no pid');
    const dir = join(sharedHome(), 'run', box.id);
    await box.files.write('/dev/shm/x', randomBytes(4 * 1024 * 1024));
    await sh(box, 'md5sum < /dev/shm/x > /dev/shm/sum; echo before > /root/log; sync');
    await using between = await Between.in(dir);
    const shim = parentOf(pid);
    const seen: Step[] = [];
    between.onStep = (step) => {
      seen.push(step);
      if (step === at && seen.filter((one) => one === at).length === 1) process.kill(shim, 'SIGKILL');
    };
    const error = await box.branch().then(
      () => undefined,
      (failure: { code: string; message: string }) => failure,
    );
    expect(seen).toContain(at);
    expect(error?.code).toBe('vmm_failed');
    expect(error?.message).toMatch(/shim/);
    // It answers, has what it had, and can be written to.
    expect(await box.info()).toMatchObject({ state: 'running', pid });
    const look = 'md5sum < /dev/shm/x | diff - /dev/shm/sum && cat /root/log | xargs';
    expect(await sh(box, `echo after >> /root/log; sync; ${look}`)).toBe('before after');
    // Nothing is left of it: no half of a snapshot, no clone, no other process.
    const snapshots = readdirSync(join(sharedHome(), 'snapshots'));
    expect(snapshots.filter((name) => name.startsWith('.'))).toEqual([]);
    expect((await client().snapshots.list()).filter(({ branched_from }) => branched_from === box.id)).toEqual(
      [],
    );
    await eventually(() => (processesIn(dir).length === 2 ? true : undefined));
    const { id, status } = await box.branch();
    expect(status).toBe('ready');
    expect(await inChild(id, `${look}; dmesg | grep -ci "ext4.*error" || true`)).toBe('before after\n0');
    await children[Symbol.asyncDispose]();
    await dropAllOf(box.id);
  });
});
