import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { BuildEvent } from '@forkd/api';
import { expect, it } from 'vitest';
import { type OwnHome, ownHome } from '../sandbox/home.js';
import { fork } from '../sandbox/support.js';
import { forkd } from '../support/cli.js';

const yaml = (setup: string) => `base: busybox
memory: 96M
disk: 64M
setup: ["echo ${setup} > /root/made"]
`;

/** State of the step that runs the setup. */
async function build(home: OwnHome, text: string): Promise<string | undefined> {
  const events: BuildEvent[] = [];
  for await (const event of home.client.templates.build({ yaml: text }, { tag: 'collected' }))
    events.push(event);
  expect(events.at(-1)).toMatchObject({ type: 'done' });
  const states = events.filter(
    (event) => event.type === 'step' && event.step === 'setup-1' && event.state !== 'running',
  );
  return states.map((event) => ('state' in event ? event.state : undefined))[0];
}

it('a collection takes disks of setups that no template with a tag is built on, and says first what that frees', {
  timeout: 240_000,
}, async () => {
  await using home = await ownHome();
  const { snapshots } = home.client;
  const disks = () => readdirSync(join(home.path, 'cache/setups')).sort();
  await snapshots.gc();
  expect(await build(home, yaml('one'))).toBe('done');
  const [first = ''] = disks();
  expect(await snapshots.gc({ dryRun: true })).toEqual({
    removed: [],
    setup_disks: 0,
    freed_bytes: 0,
    dry_run: true,
  });
  // A branch of it stands on the snapshot, not on the disk from which that was built.
  const branch = await (async () => {
    await using children = await fork(1, { snapshot: 'collected' }, home.client);
    return await children.box.branch({ tag: 'kept' });
  })();
  expect(await build(home, yaml('two'))).toBe('done');
  expect(disks()).toHaveLength(2);
  const { blocks } = statSync(join(home.path, 'cache/setups', first));
  const would = { removed: [], setup_disks: 1, freed_bytes: blocks * 512 };
  expect(await snapshots.gc({ dryRun: true })).toEqual({ ...would, dry_run: true });
  expect(disks()).toHaveLength(2);
  const told = await forkd(['snapshot', 'gc', '--dry-run'], { env: { FORKD_HOME: home.path } });
  expect(told).toMatchObject({ code: 0, stdout: '' });
  expect(told.stderr).toMatch(/^would be removed: 0 snapshots, 1 disks of setups, \d/m);
  expect(await snapshots.gc()).toEqual({ ...would, dry_run: false });
  expect(disks()).toHaveLength(1);
  expect(disks()).not.toContain(first);
  await using grandchildren = await fork(1, { snapshot: branch.id }, home.client);
  expect(await grandchildren.box.exec({ shell: 'cat /root/made' })).toMatchObject({ stdout: 'one\n' });
});
