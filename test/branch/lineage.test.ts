import type { TreeNode } from '@forkd/api';
import { describe, expect, it } from 'vitest';
import { client, failureOf, fork, sh } from '../sandbox/support.js';
import { drop } from './support.js';

const listed = async () => (await client().snapshots.list()).map(({ id }) => id);

describe('a snapshot that others build on', () => {
  it('is kept, and the refusal names them; with its dependents it goes when no sandbox uses one', async () => {
    await using children = await fork();
    const first = await children.box.branch();
    const second = await children.box.branch();
    const users = await fork(1, { snapshot: second.id });
    const error = await failureOf(client().snapshots.remove(first.id));
    expect(error).toMatchObject({
      code: 'snapshot_in_use',
      status: 409,
      details: { dependents: [second.id] },
    });
    expect(error.message).toContain(second.id);
    const cascade = await failureOf(client().snapshots.removeWithDependents(first.id));
    expect(cascade.details).toEqual({ dependents: [users.box.id] });
    await users[Symbol.asyncDispose]();
    const { removed } = await client().snapshots.removeWithDependents(first.id);
    expect(removed).toEqual([second.id, first.id]);
    expect(await sh(children.box, 'echo fine')).toBe('fine');
  });

  it('without tag waits for a garbage collection, which says first what it would do', async () => {
    await using children = await fork();
    const { id } = await children.box.branch();
    const tagged = await children.box.branch();
    await client().snapshots.tag(tagged.id, `gc-${process.pid}`);
    expect((await client().snapshots.gc({ dryRun: true })).removed).not.toContain(id);
    await drop(tagged.id);
    await children[Symbol.asyncDispose]();
    expect(await listed()).toContain(id);
    const would = await client().snapshots.gc({ dryRun: true });
    expect(would).toMatchObject({ dry_run: true });
    expect(would.removed).toContain(id);
    expect(await listed()).toContain(id);
    // Not collected here: other tests have untagged branches meanwhile. That it does so is tested in the controller.
    await drop(id);
  });
});

describe('a tag', () => {
  it('is given once, and moved only when that is said', async () => {
    await using children = await fork();
    const tag = `tag-${process.pid}`;
    const [first, second] = [await children.box.branch({ tag }), await children.box.branch()];
    expect(await failureOf(client().snapshots.tag(second.id, tag))).toMatchObject({ code: 'tag_exists' });
    expect(await client().snapshots.tag(second.id, tag, { move: true })).toMatchObject({ tags: [tag] });
    expect((await client().snapshots.get(tag)).id).toBe(second.id);
    await drop(first.id);
  });
});

describe('the tree', () => {
  it('has a branch below its source, and below what it stands on once the source is gone', async () => {
    await using children = await fork();
    const { id } = await children.box.branch();
    const { id: base } = await client().snapshots.get('busybox');
    const node = async (wanted: string): Promise<TreeNode | undefined> =>
      (await client().tree()).find((one) => one.id === wanted);
    expect(await node(children.box.id)).toMatchObject({ kind: 'sandbox', parent: base, state: 'running' });
    expect(await node(id)).toMatchObject({ kind: 'snapshot', parent: children.box.id, state: 'ready' });
    expect((await node(id))?.memory_bytes).toBeLessThan((await node(base))?.memory_bytes ?? 0);
    await children[Symbol.asyncDispose]();
    expect(await node(id)).toMatchObject({ parent: base });
    await drop(id);
  });
});

describe('promote', () => {
  it('gives a sandbox the place of another one, which is kept as a snapshot', async () => {
    await using children = await fork(1, { metadata: { task: 'a' } });
    const source = children.box;
    await sh(source, 'echo source > /dev/shm/who');
    const { sandboxes, snapshot } = await source.fork(1);
    const child = sandboxes[0];
    if (child === undefined) throw new Error('no child');
    await sh(child, 'echo child > /dev/shm/who');
    const promoted = await child.promote(source.id);
    expect(promoted.sandbox).toMatchObject({ id: child.id, aliases: [source.id], metadata: { task: 'a' } });
    expect(promoted.snapshot).toMatchObject({ status: 'ready', branched_from: source.id });
    expect(await sh(source, 'cat /dev/shm/who')).toBe('child');
    const before = await fork(1, { snapshot: promoted.snapshot.id });
    expect(await sh(before.box, 'cat /dev/shm/who')).toBe('source');
    await before[Symbol.asyncDispose]();
    await source.kill();
    expect(await failureOf(child.info())).toMatchObject({ code: 'sandbox_not_found' });
    await drop(snapshot.id);
  });
});
