import { linkSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { BranchReply, RemovalReport, SandboxInfo, SnapshotDetail, SnapshotInfo, Tree } from '@forkd/api';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { maxBranches } from './branches.js';
import { Registry } from './registry/registry.js';
import { startDaemon, type TestDaemon, temporaryHome } from './testing/daemon.js';
import { afterKill } from './testing/registry.js';

let home: string;
let test: TestDaemon;
let base: string;
let box: string;

beforeEach(async () => {
  home = temporaryHome();
  test = await startDaemon({ home });
  base = await test.build();
  box = await fork('base');
});
afterEach(async () => {
  await test[Symbol.asyncDispose]();
  rmSync(home, { recursive: true, force: true });
});

async function fork(ref: string): Promise<string> {
  const { body } = await test.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag: ref });
  return body[0]?.id ?? '';
}
const branch = (body: object = {}, id = box) =>
  test.call<SnapshotInfo & { code?: string }>('POST', `/v1/sandboxes/${id}/branch`, body);
const info = async (ref: string) => (await test.call<SnapshotInfo>('GET', `/v1/snapshots/${ref}`)).body;
const detail = async (ref: string) =>
  (await test.call<SnapshotDetail>('GET', `/v1/snapshots/${ref}/info`)).body;
async function restart(): Promise<void> {
  await test[Symbol.asyncDispose]();
  test = await startDaemon({ home });
}
/** Holds the writing of branches until it is let go, or fails. */
function hold(): { release: () => void; fail: (error: Error) => void } {
  const held = withResolvers();
  test.engine.branchWritten = () => held.promise;
  return { release: () => held.resolve(), fail: held.reject };
}
function withResolvers() {
  let resolve: () => void = () => undefined;
  let reject: (error: Error) => void = () => undefined;
  const promise = new Promise<void>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}

describe('a branch', () => {
  it('that becomes ready while snapshots are listed is in the list once', async () => {
    const writing = hold();
    const { id } = (await branch({ wait: false })).body;
    test.engine.listed = async () => {
      test.engine.listed = async () => undefined;
      writing.release();
      await vi.waitUntil(async () => (await info(id)).status === 'ready');
    };
    const list = (await test.call<SnapshotInfo[]>('GET', '/v1/snapshots')).body;
    expect(list.filter((one) => one.id === id)).toHaveLength(1);
    expect((await info(id)).status).toBe('ready');
  });

  it('answers the snapshot, what it stands on and what it has cost', async () => {
    const { status, body } = await branch({ tag: 'half', diff: true, measure_diff: true });
    expect(status).toBe(201);
    expect(body).toMatchObject({
      tag: 'half',
      tags: ['half'],
      status: 'ready',
      bootable: true,
      branched_from: box,
      mode: 'live',
      pause_ms: 3,
      diff_ms: 2,
      diff_physical_bytes: 4096,
      diff_logical_bytes: 8192,
    });
    const second = (await branch()).body.id;
    expect(await detail(second)).toMatchObject({
      chain_depth: 2,
      ancestors: [base, body.id],
      parent_tag: 'half',
    });
    expect(await detail('half')).toMatchObject({ chain_depth: 1, dependents: [second], parent_tag: 'base' });
    const { body: source } = await test.call<SandboxInfo>('GET', `/v1/sandboxes/${box}`);
    expect(source.has_branched).toBe(true);
  });

  it('needs no body, and starts children when it is told to', async () => {
    expect((await test.call('POST', `/v1/sandboxes/${box}/branch`)).status).toBe(201);
    test.engine.failing.add(1);
    const { status, body } = await test.call<BranchReply>('POST', `/v1/sandboxes/${box}/branch`, { n: 2 });
    expect(status).toBe(207);
    expect(body).toMatchObject({
      status: 'ready',
      sandboxes: [{ snapshot_id: body.id }],
      failures: [{ index: 1 }],
    });
  });

  it.each([
    [{ mode: 'live', diff: true }, 'invalid_argument'],
    [{ mode: 'half' }, 'invalid_argument'],
    [{ n: 2, wait: false }, 'invalid_argument'],
    [{ n: 0 }, 'invalid_argument'],
    [{ tag: 'a b' }, 'invalid_argument'],
    [{ tag: 'sn-0000000000000000' }, 'invalid_argument'],
    [{ depth: 1 }, 'unknown_field'],
  ])('%j is refused', async (body, code) => {
    expect(await branch(body)).toMatchObject({ status: 400, body: { code } });
  });

  it('of a sandbox that is not there, or to a tag that is, is refused before anything starts', async () => {
    expect(await branch({}, 'sb-0000000000000000')).toMatchObject({ status: 404 });
    expect(await branch({ tag: 'base' })).toMatchObject({ status: 409, body: { code: 'tag_exists' } });
    expect((await test.call<SnapshotInfo[]>('GET', '/v1/snapshots')).body).toHaveLength(1);
  });
});

describe('a branch that is being written', () => {
  it('is listed, has its tag, and cannot be forked, removed or built upon until it is ready', async () => {
    const held = hold();
    const started = await branch({ tag: 'half', wait: false });
    expect(started).toMatchObject({ status: 202, body: { status: 'writing', tag: 'half', pause_ms: 3 } });
    expect(await info('half')).toMatchObject({ id: started.body.id, status: 'writing' });
    expect(await branch({ tag: 'half' })).toMatchObject({ status: 409, body: { code: 'tag_exists' } });
    for (const ref of ['half', started.body.id]) {
      const forked = await test.call('POST', '/v1/sandboxes', { snapshot_tag: ref });
      expect(forked).toMatchObject({ status: 409, body: { code: 'snapshot_not_ready' } });
      expect(await test.call('DELETE', `/v1/snapshots/${ref}`)).toMatchObject({ status: 409 });
    }
    const gc = await test.call<RemovalReport>('POST', '/v1/snapshots/gc');
    expect(gc.body.removed).toEqual([]);
    held.release();
    await branch();
    expect(await info('half')).toMatchObject({ status: 'ready', tags: ['half'] });
  });

  it('keeps a source that is removed until it is written', async () => {
    const held = hold();
    const { body } = await branch({ wait: false });
    const removal = test.call('DELETE', `/v1/sandboxes/${box}`);
    expect(await branch()).toMatchObject({ status: 409, body: { code: 'sandbox_not_running' } });
    held.release();
    expect((await removal).status).toBe(204);
    expect(await info(body.id)).toMatchObject({ status: 'ready' });
    expect(await fork(body.id)).toMatch(/^sb-/);
  });

  it('keeps what it stands on', async () => {
    const first = (await branch()).body.id;
    const held = hold();
    await branch({ wait: false });
    expect(await test.call('DELETE', `/v1/snapshots/${first}`)).toMatchObject({
      status: 409,
      body: { code: 'snapshot_in_use' },
    });
    held.release();
  });

  it('and fails says why, frees its tag, and is forgotten by a garbage collection', async () => {
    const held = hold();
    const { body } = await branch({ tag: 'half', wait: false });
    const waited = branch();
    held.fail(new Error('the disk is full'));
    expect(await waited).toMatchObject({ status: 500 });
    expect(await info('half')).toMatchObject({
      status: 'failed',
      warning: expect.stringContaining('the disk is full'),
    });
    test.engine.branchWritten = async () => undefined;
    expect(await branch({ tag: 'half' })).toMatchObject({ status: 201 });
    await test.call('POST', '/v1/snapshots/gc');
    expect(await test.call('GET', `/v1/snapshots/${body.id}`)).toMatchObject({ status: 404 });
  });

  it('beyond the most of a host is busy, and says when to try again', async () => {
    const held = hold();
    for (let index = 0; index < maxBranches; index++)
      expect((await branch({ wait: false })).status).toBe(202);
    const { status, headers } = await branch();
    expect({ status, after: headers['retry-after'] }).toEqual({ status: 503, after: '1' });
    held.release();
  });
});

describe('a branch that is ready and not durable yet', () => {
  const tagsOnDisk = () => afterKill(join(home, 'registry.db'), (registry) => [...registry.tags().keys()]);

  it('can be forked by its tag, which is written down when it is durable', async () => {
    const synced = withResolvers();
    test.engine.branchSynced = () => synced.promise;
    const { status, body } = await branch({ tag: 'half' });
    expect({ status, body }).toMatchObject({ status: 201, body: { status: 'ready', durable: false } });
    expect(await fork('half')).toMatch(/^sb-/);
    expect(tagsOnDisk()).toEqual(['base']);
    const more = test.call<SnapshotInfo>('POST', `/v1/snapshots/${body.id}/tag`, { tag: 'more' });
    synced.resolve();
    expect(await more).toMatchObject({ body: { tags: ['half', 'more'], durable: true } });
    expect(tagsOnDisk().sort()).toEqual(['base', 'half', 'more']);
  });

  it('keeps its tag when the daemon is another one, and tells when it cannot be made so', async () => {
    test.engine.branchSynced = () => new Promise(() => undefined);
    const { id } = (await branch({ tag: 'half' })).body;
    await restart();
    expect(await info('half')).toMatchObject({ id, status: 'ready' });
    const synced = withResolvers();
    test.engine.branchSynced = () => synced.promise;
    await fork('base').then((other) => branch({ tag: 'other' }, other));
    synced.reject(new Error('the disk broke'));
    expect(tagsOnDisk()).not.toContain('other');
    expect((await test.call('DELETE', '/v1/snapshots/other')).status).toBe(204);
  });
});

describe('a daemon that starts again', () => {
  it('tells of a branch that was broken off as failed, once', async () => {
    await test[Symbol.asyncDispose]();
    const id = 'sn-ha1f000000000000';
    const registry = new Registry(join(home, 'registry.db'));
    const row = { template: 'base', status: 'writing' as const, createdAt: 1, sandbox: box, problem: null };
    registry.journalDraft({ ...row, id, tag: 'half' });
    registry.close();
    test = await startDaemon({ home });
    expect(await info(id)).toMatchObject({ status: 'failed', branched_from: box });
    expect((await branch({ tag: 'half' })).status).toBe(201);
    await restart();
    expect(await test.call('GET', `/v1/snapshots/${id}`)).toMatchObject({ status: 404 });
  });

  it('finishes a branch that was complete, and does not give branches the tag of their template', async () => {
    const untagged = (await branch()).body.id;
    const { id } = (await branch({ tag: 'half' })).body;
    await test[Symbol.asyncDispose]();
    const registry = new Registry(join(home, 'registry.db'));
    registry.dropSnapshot(id);
    registry.dropSnapshot(base);
    registry.journalDraft({
      id,
      template: 'base',
      status: 'writing',
      createdAt: 1,
      sandbox: box,
      problem: null,
      tag: 'half',
    });
    registry.close();
    test = await startDaemon({ home });
    expect(await info('half')).toMatchObject({ id, status: 'ready' });
    expect(await info('base')).toMatchObject({ id: base });
    expect(await info(untagged)).toMatchObject({ tags: [] });
  });

  it('knows whose place a sandbox has taken', async () => {
    const child = await fork('base');
    expect((await test.call('POST', `/v1/sandboxes/${child}/promote`, { over: box })).status).toBe(200);
    await restart();
    const { body } = await test.call<SandboxInfo>('GET', `/v1/sandboxes/${box}`);
    expect(body).toMatchObject({ id: child, aliases: [box] });
  });
});

describe('lineage', () => {
  it('takes the place of a sandbox that there is', async () => {
    const child = await fork('base');
    const answer = await test.call('POST', `/v1/sandboxes/${child}/promote`, { over: 'half' });
    expect(answer).toMatchObject({ status: 404, body: { code: 'sandbox_not_found' } });
  });

  it('decides what may be removed, alone or with all that stands on it', async () => {
    const first = (await branch()).body.id;
    const second = (await branch()).body.id;
    const user = await fork(second);
    const refused = await test.call('DELETE', `/v1/snapshots/${first}?cascade=true`);
    expect(refused).toMatchObject({ status: 409, body: { details: { dependents: [user] } } });
    expect(refused).toMatchObject({ body: { remedy: `Remove these first: forkd rm ${user}` } });
    await test.call('DELETE', `/v1/sandboxes/${user}`);
    expect(await test.call('DELETE', `/v1/snapshots/${first}`)).toMatchObject({
      ...{ status: 409, body: { remedy: expect.stringContaining('--cascade') } },
    });
    const { body } = await test.call<RemovalReport>('DELETE', `/v1/snapshots/${first}?cascade=true`);
    expect(body).toEqual({ removed: [second, first], freed_bytes: 6, dry_run: false });
  });

  it('lets a garbage collection take what has no tag and no use, with what stands on that alone', async () => {
    const kept = (await branch()).body.id;
    await branch({ tag: 'half' });
    const first = (await branch()).body.id;
    const second = (await branch()).body.id;
    const dry = await test.call<RemovalReport>('POST', '/v1/snapshots/gc?dry_run=true');
    expect(dry.body).toEqual({ removed: [second, first], setup_disks: 0, freed_bytes: 6, dry_run: true });
    expect(await info(second)).toMatchObject({ status: 'ready' });
    const { body } = await test.call<RemovalReport>('POST', '/v1/snapshots/gc');
    expect(body).toEqual({ removed: [second, first], setup_disks: 0, freed_bytes: 6, dry_run: false });
    expect((await test.call<SnapshotInfo[]>('GET', '/v1/snapshots')).body.map(({ id }) => id)).toContain(
      kept,
    );
  });

  it('lets it take disks of setups that no template with a tag is built on', async () => {
    test.engine.setUps = ['used', 'unused'];
    test.engine.setUpOfBuilds = 'used';
    await test.build();
    const dry = await test.call<RemovalReport>('POST', '/v1/snapshots/gc?dry_run=true');
    expect(dry.body).toMatchObject({ removed: [], setup_disks: 1, freed_bytes: 10, dry_run: true });
    expect(test.engine.setUps).toEqual(['used', 'unused']);
    await test.call('POST', '/v1/snapshots/gc');
    expect(test.engine.setUps).toEqual(['used']);
  });

  it('keeps the snapshot of a rebuilt template while a branch stands on it', async () => {
    const { id } = (await branch()).body;
    await test.call('DELETE', `/v1/sandboxes/${box}`);
    const rebuilt = await test.build();
    expect(rebuilt).not.toBe(base);
    expect(await info(base)).toMatchObject({ status: 'ready', tags: [] });
    await test.call('DELETE', `/v1/snapshots/${id}`);
    expect(await test.call('GET', `/v1/snapshots/${base}`)).toMatchObject({ status: 404 });
  });

  it('counts the disk that a sandbox has for itself, on either engine, and not what snapshots hold too', async () => {
    const run = join(home, 'run', box);
    for (const name of ['disk', 'overlay-1.qcow2', 'shared.img'])
      writeFileSync(join(run, name), 'x'.repeat(5000));
    linkSync(join(run, 'shared.img'), join(run, 'overlay.qcow2'));
    const { nodes } = (await test.call<Tree>('GET', '/v1/tree')).body;
    const each = statSync(join(run, 'disk')).blocks * 512;
    expect(nodes.find(({ id }) => id === box)).toMatchObject({ kind: 'sandbox', disk_bytes: 2 * each });
  });
});
