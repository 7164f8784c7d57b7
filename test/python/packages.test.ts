import type { BuildEvent, SnapshotDetail } from '@forkd/api';
import { expect, it } from 'vitest';
import { client, fork, sh } from '../sandbox/support.js';

const yaml = `base: debian:bookworm
packages: [python3, python3-numpy]
pip: ["six>=1.16", tabulate]
user: nobody
interpreters:
  - name: python
    init: import six
memory: 512M
`;

interface Built {
  manifest: { build: { packages: { pip: { name: string; version: string; hash: string }[] } } };
}

async function build(): Promise<BuildEvent[]> {
  const events: BuildEvent[] = [];
  for await (const event of client().templates.build({ yaml }, { tag: 'with-pip' })) events.push(event);
  return events;
}

it('packages of pip are in every child, as the lock in the manifest says', async () => {
  const events = await build();
  expect(events.at(-1)).toMatchObject({ type: 'done', cached: false });
  try {
    const snapshot = (await client().snapshots.get('with-pip')) as SnapshotDetail & Built;
    const { pip } = snapshot.manifest.build.packages;
    expect(pip.map(({ name }) => name)).toEqual(['six', 'tabulate']);
    for (const { hash } of pip) expect(hash).toMatch(/^sha256:[0-9a-f]{64}$/);
    await using children = await fork(1, { snapshot: 'with-pip' });
    // Beside tests that have fifty children, on a host that others fill: how fast it is, other tests say.
    const patient = { timeoutSecs: 150 };
    const answer = await children.box.eval('import tabulate; [six.__version__, tabulate.__file__]', patient);
    const file = '/usr/local/lib/python3.11/dist-packages/tabulate/__init__.py';
    expect(answer.result).toBe(`['${pip[0]?.version}', '${file}']`);
    expect(await sh(children.box, "printf '1 2\\n' | tabulate -f plain", patient)).toBe('1  2');

    const again = await build();
    expect(again.at(-1)).toMatchObject({ type: 'done', cached: true });
    const states = again.filter((event) => event.type === 'step' && event.state !== 'running');
    expect(states.map((event) => 'state' in event && event.state)).toEqual(states.map(() => 'cached'));
  } finally {
    await client().snapshots.remove('with-pip');
  }
}, 420_000);
