import { readdirSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { BuildEvent } from '@forkd/api';
import { afterAll, describe, expect, it } from 'vitest';
import { client, fork, sh } from '../sandbox/support.js';
import { sharedHome } from '../support/home.js';

const TAG = 'set-up-once';

/** What a setup has made tells whether it ran again. */
const yaml = ({ setup = 'first', warm = 'one', file = 'text' } = {}) => `base: busybox
memory: 96M
disk: 64M
files:
  - {path: /root/given, content: ${file}}
  - {path: /run/given, content: ${file}}
setup:
  - cat /proc/sys/kernel/random/uuid > /root/once
  - printf ' %s' ${setup} >> /root/given; echo lost > /tmp/lost
warm_up:
  - echo ${warm} > /dev/shm/warm
`;

interface Built {
  /** By step: whether it was done, or found done. */
  states: Record<string, string>;
  /** What a child has. */
  once: string;
  given: string;
  volatile: string;
  warm: string;
}

async function build(text: string, noCache = false): Promise<Built> {
  const states: Record<string, string> = {};
  let last: BuildEvent | undefined;
  for await (const event of client().templates.build({ yaml: text }, { tag: TAG, noCache })) {
    last = event;
    if (event.type === 'step' && event.state !== 'running') states[event.step] = event.state;
  }
  expect(last).toMatchObject({ type: 'done' });
  await using children = await fork(1, { snapshot: TAG });
  const look =
    'cat /root/once; xargs < /root/given; cat /run/given; echo; cat /dev/shm/warm; ls /tmp/lost 2>&1';
  const [once = '', given = '', volatile = '', warm = '', lost] = (
    await sh(children.box, `${look} || true`)
  ).split('\n');
  expect(lost).toContain('No such file');
  return { states, once, given, volatile, warm };
}

const disks = join(sharedHome(), 'cache/setups');
const kept = () => readdirSync(disks).filter((name) => name.endsWith('.disk'));

afterAll(() => client().snapshots.remove(TAG));

describe('the setup of a template', { timeout: 400_000 }, () => {
  it('runs once for all warm-ups that follow, and again when it, a file or "no cache" says so', async () => {
    const first = await build(yaml());
    expect(first).toMatchObject({ given: 'text first', volatile: 'text', warm: 'one' });
    expect(first.states).toMatchObject({ files: 'done', 'setup-1': 'done', 'setup-2': 'done', boot: 'done' });
    const warmer = await build(yaml({ warm: 'two' }));
    expect(warmer.states).toMatchObject({ 'setup-1': 'cached', 'setup-2': 'cached', 'warm-up-1': 'done' });
    expect(warmer.states).not.toHaveProperty('setup-boot');
    expect(warmer).toMatchObject({ once: first.once, given: 'text first', volatile: 'text', warm: 'two' });
    const other = await build(yaml({ setup: 'second' }));
    expect(other).toMatchObject({ states: { 'setup-1': 'done' }, given: 'text second' });
    expect(other.once).not.toBe(first.once);
    const file = await build(yaml({ file: 'more' }));
    expect(file).toMatchObject({ states: { files: 'done', 'setup-1': 'done' }, given: 'more first' });
    // Back to what was before: its disk is still there.
    expect(await build(yaml({ warm: 'three' }))).toMatchObject({ once: first.once, warm: 'three' });
    const anew = await build(yaml({ warm: 'three' }), true);
    expect(anew.states).toMatchObject({ files: 'done', 'setup-1': 'done' });
    expect(anew.once).not.toBe(first.once);
    // And from then on that one counts.
    expect(await build(yaml({ warm: 'four' }))).toMatchObject({ once: anew.once });
  });

  it('made anew leaves the other templates on its base as they are', async () => {
    await build(yaml({ warm: 'anew' }), true);
    const events: BuildEvent[] = [];
    for await (const event of client().templates.build('busybox')) events.push(event);
    expect(events.at(-1)).toMatchObject({ type: 'done', cached: true });
  });

  it('runs again where only half of its disk is there', async () => {
    const before = new Set(kept());
    const first = await build(yaml({ setup: 'half' }));
    const [disk] = kept().filter((name) => !before.has(name));
    if (disk === undefined) throw new Error('no disk was kept');
    // As a crash amid the copy would leave it, and as a careless hand would.
    writeFileSync(join(disks, `.tmp-4194303-${disk}`), 'half');
    truncateSync(join(disks, disk), 4096);
    const again = await build(yaml({ setup: 'half', warm: 'two' }));
    expect(again.states).toMatchObject({ 'setup-1': 'done' });
    expect(again.once).not.toBe(first.once);
    expect(readdirSync(disks).filter((name) => name.startsWith('.tmp-'))).toEqual([]);
    expect(await build(yaml({ setup: 'half', warm: 'three' }))).toMatchObject({ once: again.once });
  });

  it('that fails leaves no disk', async () => {
    const before = kept();
    const events: BuildEvent[] = [];
    const text = 'base: busybox\nmemory: 96M\ndisk: 64M\nsetup: ["echo a > /root/a", "exit 3"]\n';
    for await (const event of client().templates.build({ yaml: text }, { tag: 'never' })) events.push(event);
    expect(events.at(-1)).toMatchObject({ type: 'failed', error: { details: { step: 'setup-2' } } });
    expect(kept()).toEqual(before);
  });
});
