import { randomBytes } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { client, fork, sh } from '../sandbox/support.js';
import { sharedHome } from '../support/home.js';
import { parentOf } from '../support/processes.js';
import { eventually } from '../support/wait.js';
import { dropAllOf, inChild } from './support.js';

/** Waits until a branch is ready or has failed; says which. Nothing of a failed one may be left on disk. */
async function settled(id: string): Promise<string> {
  const status = await eventually(async () => {
    const info = (await client().snapshots.list()).find((one) => one.id === id);
    return info?.status === 'writing' ? undefined : (info?.status ?? 'gone');
  }, 40_000);
  const names = readdirSync(join(sharedHome(), 'snapshots')).filter((name) => name.includes(id));
  expect(names).toEqual(status === 'ready' ? [id] : []);
  return status;
}

describe('amid a branch', () => {
  it.each(['VMM', 'shim'])('the %s killed leaves a whole snapshot or none', async (victim) => {
    await using children = await fork();
    const { box } = children;
    await box.files.write('/dev/shm/x', randomBytes(16 * 1024 * 1024));
    await sh(box, 'md5sum < /dev/shm/x > /dev/shm/sum');
    const { pid } = await box.info();
    if (pid === null) throw new Error('no pid');
    const { id } = await box.branch({ wait: false });
    process.kill(victim === 'VMM' ? pid : parentOf(pid), 'SIGKILL');
    if ((await settled(id)) === 'ready')
      expect(await inChild(id, 'md5sum < /dev/shm/x | diff - /dev/shm/sum && echo same')).toBe('same');
    await box.kill();
    expect(readdirSync(join(sharedHome(), 'run'))).not.toContain(box.id);
    await dropAllOf(box.id);
  });
});
