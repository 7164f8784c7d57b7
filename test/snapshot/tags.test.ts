import { existsSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { build, client, failureOf, fork, sh } from '../sandbox/support.js';
import { eventually } from '../support/wait.js';

const yaml = (text: string) => `base: busybox
memory: 96M
disk: 64M
setup:
  - echo ${text} > /root/version
`;

// Each build boots two machines: one for its setup.
describe('a template that is built again', { timeout: 240_000 }, () => {
  it('moves its tag; old children run on, and their snapshot goes with the last of them', async () => {
    const first = await build(yaml('one'), 'moving');
    try {
      await using old = await fork(2, { snapshot: 'moving' });
      const second = await build(yaml('two'), 'moving');
      expect(second).not.toBe(first);
      expect((await client().snapshots.get('moving')).id).toBe(second);
      await using young = await fork(1, { snapshot: 'moving' });
      expect(await sh(young.box, 'cat /root/version')).toBe('two');
      for (const box of old.boxes) expect(await sh(box, 'cat /root/version; echo $((6*7))')).toBe('one\n42');
      // By its id it can still be forked, for as long as somebody needs it.
      {
        await using late = await fork(1, { snapshot: first });
        expect(await sh(late.box, 'cat /root/version')).toBe('one');
      }
      expect((await client().snapshots.get(first)).tags).toEqual([]);
      await old[Symbol.asyncDispose]();
      const gone = () =>
        client()
          .snapshots.get(first)
          .then(
            () => undefined,
            () => true,
          );
      expect(await eventually(gone)).toBe(true);
      expect(await sh(young.box, 'cat /root/version')).toBe('two');
    } finally {
      await client()
        .snapshots.remove('moving')
        .catch(() => undefined);
    }
    expect(await failureOf(client().fork({ snapshot: 'moving' }))).toMatchObject({
      code: 'snapshot_not_found',
    });
  });

  it('while children are forked from it: each has one of the two, whole', async () => {
    await build(yaml('one'), 'racing');
    try {
      const building = build(yaml('two'), 'racing');
      const versions = new Set<string>();
      let built = false;
      void building.finally(() => {
        built = true;
      });
      while (!built) {
        await using children = await fork(2, { snapshot: 'racing' });
        for (const box of children.boxes) versions.add(await sh(box, 'cat /root/version'));
      }
      await building;
      await using last = await fork(1, { snapshot: 'racing' });
      expect(await sh(last.box, 'cat /root/version')).toBe('two');
      expect([...versions].every((version) => version === 'one' || version === 'two')).toBe(true);
    } finally {
      await client().snapshots.remove('racing');
    }
  });

  it('and fails keeps what there was, says which step, and leaves nothing half made', async () => {
    const good = await build(yaml('good'), 'failing');
    try {
      const bad = `${yaml('bad')}  - echo last words; echo worse >&2; exit 3\n`;
      const events = [];
      for await (const event of client().templates.build({ yaml: bad }, { tag: 'failing' }))
        events.push(event);
      const end = events.at(-1);
      expect(end).toMatchObject({ type: 'failed', error: { code: 'build_failed' } });
      const text = JSON.stringify(end);
      expect(text).toContain('last words');
      expect(text).toContain('worse');
      expect((await client().snapshots.get('failing')).id).toBe(good);
      await using children = await fork(1, { snapshot: 'failing' });
      expect(await sh(children.box, 'cat /root/version')).toBe('good');
    } finally {
      await client().snapshots.remove('failing');
    }
  });

  it('and is broken off keeps what there was', async () => {
    const good = await build(yaml('good'), 'broken-off');
    try {
      const slow = `${yaml('slow')}  - sleep 1000\n`;
      for await (const event of client().templates.build({ yaml: slow }, { tag: 'broken-off' })) {
        if (
          event.type === 'step' &&
          /setup|command|sleep/i.test(`${event.step} ${event.title}`) &&
          event.state === 'running'
        )
          break;
      }
      expect((await client().snapshots.get('broken-off')).id).toBe(good);
      expect(
        await eventually(async () => ((await client().daemon()).builds === 0 ? true : undefined), 20_000),
      ).toBe(true);
    } finally {
      await client().snapshots.remove('broken-off');
    }
  });
});

describe('a snapshot', () => {
  it('is not removed while a sandbox continues from it; afterwards it is, files and all', async () => {
    const id = await build(yaml('kept'), 'kept');
    const { dir } = await client().snapshots.get('kept');
    {
      await using children = await fork(2, { snapshot: 'kept' });
      for (const ref of ['kept', id]) {
        const error = await failureOf(client().snapshots.remove(ref));
        expect(error).toMatchObject({ code: 'snapshot_in_use', status: 409 });
        for (const box of children.boxes) expect(error.message).toContain(box.id);
      }
      expect(await client().snapshots.get('kept')).toMatchObject({ sandboxes: 2 });
      expect(await sh(children.box, 'cat /root/version')).toBe('kept');
    }
    await client().snapshots.remove('kept');
    expect(existsSync(dir)).toBe(false);
    for (const ref of ['kept', id]) {
      expect(await failureOf(client().snapshots.get(ref))).toMatchObject({ code: 'snapshot_not_found' });
      expect(await failureOf(client().snapshots.remove(ref))).toMatchObject({ code: 'snapshot_not_found' });
    }
  });

  it('says what it is, and what it takes', async () => {
    const detail = await client().snapshots.get('busybox');
    expect(detail).toMatchObject({
      tag: 'busybox',
      status: 'ready',
      bootable: true,
      engine: 'qemu',
      template: 'busybox',
      memory_logical_bytes: detail.memory_mib * 1_048_576,
    });
    // Pages of zero are holes.
    expect(detail.memory_physical_bytes).toBeLessThan(detail.memory_logical_bytes * 0.8);
    expect(detail.vmstate_bytes).toBeLessThan(1_000_000);
    expect((await client().snapshots.list()).some(({ id }) => id === detail.id)).toBe(true);
  });
});
