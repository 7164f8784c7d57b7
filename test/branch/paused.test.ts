import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { type Machine, newId } from '@forkd/engine';
import { expect, it } from 'vitest';
import { ownHome } from '../sandbox/home.js';
import { takeOver } from './library.js';

/** What a machine answers to a command. The daemon has no verb that pauses; the library has. */
async function sh(machine: Machine, shell: string): Promise<string> {
  const session = await machine.session();
  const process = await session.spawn({ command: { shell }, stdin: 'none', label: 'test' });
  const said = text(process.stdout);
  const outcome = await process.wait();
  if (outcome.kind !== 'exited' || outcome.code !== 0)
    throw new Error(`${shell}: ${JSON.stringify(outcome)}`);
  return (await said).trim();
}

it('three branches of one paused sandbox with a disk of its own stand for that instant, leave it paused, and it goes on', async () => {
  await using home = await ownHome();
  await using library = await takeOver(home);
  const source = await library.fork();
  const children: Machine[] = [];
  try {
    await sh(source, 'echo disk > /root/x; sync; echo cached > /root/y; echo memory > /dev/shm/x');
    await source.pause();
    const links: string[] = [];
    const layers: number[] = [];
    for (let n = 0; n < 3; n++) {
      const branching = await source.branch({ snapshotId: newId('sn') });
      expect(branching).toMatchObject({ mode: 'live', pauseMs: 0 });
      const { manifest, logicalBytes } = await branching.ready;
      links.push(manifest.id);
      layers.push(logicalBytes);
    }
    // It has stood still all the time: nothing has changed from one branch to the next.
    expect(layers[0]).toBeGreaterThan(1 << 20);
    expect(Math.max(...layers.slice(1))).toBeLessThan(64 * 1024);
    const look = 'cat /root/x /root/y /dev/shm/x | xargs; dmesg | grep -ci "ext4.*error" || true';
    for (const id of links) {
      const child = await library.fork(id);
      children.push(child);
      expect(await sh(child, look)).toBe('disk cached memory\n0');
    }
    await source.resume();
    await sh(source, 'echo more > /root/z; sync');
    expect(await sh(source, 'cat /root/x /root/y /root/z /dev/shm/x | xargs')).toBe(
      'disk cached more memory',
    );
    // And one that runs.
    const later = await source.branch({ snapshotId: newId('sn') });
    expect(later.pauseMs).toBeGreaterThan(0);
    const { manifest } = await later.ready;
    const child = await library.fork(manifest.id);
    children.push(child);
    expect(await sh(child, 'cat /root/z')).toBe('more');
  } finally {
    for (const machine of [source, ...children]) await machine.destroy();
  }
  expect(readdirSync(join(home.path, 'run')).filter((name) => name.startsWith('sb-'))).toEqual([]);
});
