import { expect, it } from 'vitest';
import { branch } from '../branch/support.js';
import { client, fork, sh, template } from '../sandbox/support.js';
import { guestProgram } from '../support/guest-program.js';
import { eventually } from '../support/wait.js';

const BLOCKS = 256;
const CHECK = '/root/gibibyte check /root/file /root/sums';
const NO_ERRORS = 'dmesg | grep -ciE "ext4.*error|I/O error" || true';

it('a file of 1 GiB is written and fsynced through branches: what was synced is there, writing goes on, and all sums agree, in source and children', {
  timeout: 300_000,
}, async () => {
  using program = guestProgram(new URL('./gibibyte.c', import.meta.url));
  const yaml = `base: busybox
memory: 256M
disk: 2G
files:
  - {path: /root/gibibyte, from: ${program.path}, mode: "0755"}
`;
  await using source = await template(yaml, 'gibibyte');
  await using children = await fork(1, { snapshot: source.tag });
  const { box } = children;
  const writer = `/root/gibibyte write /root/file /root/sums ${BLOCKS} && echo done > /root/done`;
  await sh(box, `(${writer}) > /root/said 2>&1 &`);
  const written = async (n: number) =>
    await eventually(
      async () =>
        Number(await sh(box, 'stat -c %s /root/sums 2>/dev/null || echo 0')) / 8 >= n ? true : undefined,
      120_000,
    );
  await written(20);
  await using first = await branch(box, { wait: false });
  await written(100);
  await using second = await branch(box, { mode: 'diff' });
  await eventually(
    async () => ((await client().snapshots.get(first.id)).status === 'ready' ? true : undefined),
    60_000,
  );
  await using firstChild = await fork(1, { snapshot: first.id });
  await using secondChild = await fork(1, { snapshot: second.id });
  const long = { timeoutSecs: 120 };
  // At once, before the rest is written: what was synced when it was branched.
  for (const [child, least] of [
    [firstChild.box, 20],
    [secondChild.box, 100],
  ] as const) {
    const synced = await sh(child, CHECK, long);
    expect(synced).toMatch(/^\d+$/);
    expect(Number(synced)).toBeGreaterThanOrEqual(least);
  }
  const finished = 'until [ -e /root/done ]; do sleep 0.2; done; cat /root/said; stat -c %s /root/file';
  for (const each of [box, firstChild.box, secondChild.box]) {
    expect(await sh(each, finished, long)).toBe(String(2 ** 30));
    expect(await sh(each, `${CHECK}; ${NO_ERRORS}`, long)).toBe(`${BLOCKS}\n0`);
  }
});
