import { rmSync } from 'node:fs';
import { join } from 'node:path';
import type { ForkReport, SandboxInfo, SnapshotInfo } from '@forkd/api';
import { EngineError } from '@forkd/engine';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Registry, type SandboxRow } from './registry/registry.js';
import { startDaemon, type TestDaemon, temporaryHome } from './testing/daemon.js';
import { snapshotId } from './testing/fake-engine.js';

let home: string;
let test: TestDaemon;
let base: string;

beforeEach(async () => {
  home = temporaryHome();
  test = await startDaemon({ home });
  base = await test.build();
});
afterEach(async () => {
  await test[Symbol.asyncDispose]();
  rmSync(home, { recursive: true, force: true });
});

const fork = async (body: object = {}): Promise<SandboxInfo[]> =>
  (await test.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag: 'base', ...body })).body;
const list = async () => (await test.call<SandboxInfo[]>('GET', '/v1/sandboxes')).body;
const show = async (id: string) => (await test.call<SandboxInfo>('GET', `/v1/sandboxes/${id}`)).body;
/** Ends the daemon and starts another on the same home. */
async function restart(): Promise<void> {
  await test[Symbol.asyncDispose]();
  test = await startDaemon({ home });
}
async function eventually<T>(look: () => Promise<T>, wanted: (value: T) => boolean): Promise<T> {
  for (;;) {
    const value = await look();
    if (wanted(value)) return value;
  }
}

describe('a fork', () => {
  it('answers each child with who it is', async () => {
    const children = await fork({ n: 3, hostname_prefix: 'box', metadata: { a: 'b' } });
    expect(children.map((child) => child.hostname)).toEqual(['box-0', 'box-1', 'box-2']);
    expect(new Set(children.map((child) => child.generation)).size).toBe(3);
    expect(children[0]).toMatchObject({
      state: 'running',
      snapshot_tag: 'base',
      snapshot_id: base,
      memory_mib: 512,
      metadata: { a: 'b' },
      timings: { total_ms: 4 },
    });
    expect(await show(children[0]?.id ?? '')).toMatchObject({ memory_bytes: 1_048_576 });
    expect(await list()).toHaveLength(3);
  });

  it('by the id of a snapshot works as by its tag', async () => {
    expect(await fork({ snapshot_tag: base })).toMatchObject([{ snapshot_tag: base, snapshot_id: base }]);
  });

  it('of which some children fail answers those that run, and says how many do not', async () => {
    test.engine.failing.add(1);
    const array = await test.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag: 'base', n: 3 });
    expect(array).toMatchObject({ status: 207, headers: { 'forkd-failed-children': '1' } });
    expect(array.body).toHaveLength(2);
    const report = await test.call<ForkReport>('POST', '/v1/sandboxes', {
      snapshot_tag: 'base',
      n: 3,
      report: true,
    });
    expect(report.status).toBe(207);
    expect(report.body.failures).toMatchObject([
      { index: 1, error: { code: 'vmm_failed', error: 'child 1 failed' } },
    ]);
    expect(await list()).toHaveLength(4);
  });

  it('of which all children fail is an error with the reason of each, and leaves nothing', async () => {
    test.engine.failing.add(0).add(1);
    const { status, body } = await test.call('POST', '/v1/sandboxes', { snapshot_tag: 'base', n: 2 });
    expect(status).toBe(500);
    expect(body).toMatchObject({ code: 'fork_failed', details: { failures: [{ index: 0 }, { index: 1 }] } });
    expect(await list()).toEqual([]);
  });

  it('that the engine refuses as a whole keeps its message and numbers', async () => {
    test.engine.forkError = new EngineError('insufficient_memory', '5 children need 9 GiB, 1 GiB is free', {
      details: { needed: 9 },
    });
    const { status, body } = await test.call('POST', '/v1/sandboxes', { snapshot_tag: 'base', n: 5 });
    expect(status).toBe(507);
    expect(body).toMatchObject({ error: '5 children need 9 GiB, 1 GiB is free', details: { needed: 9 } });
    expect(await list()).toEqual([]);
  });
});

describe('a sandbox', () => {
  it('whose VMM ends stays in the list with its reason until it is removed', async () => {
    const [{ id }] = (await fork()) as [SandboxInfo];
    test.engine.kill(id, { kind: 'signaled', signal: 'SIGKILL', lastWords: 'out of memory' });
    const info = await eventually(
      () => show(id),
      (now) => now.state === 'exited',
    );
    expect(info).toMatchObject({
      pid: null,
      exit: { kind: 'signaled', signal: 'SIGKILL', last_words: 'out of memory' },
    });
    const exec = await test.call('POST', `/v1/sandboxes/${id}/exec`, { args: ['true'] });
    expect(exec).toMatchObject({ status: 409, body: { code: 'sandbox_exited' } });
    expect((await test.call('DELETE', `/v1/sandboxes/${id}`)).status).toBe(204);
    expect(await list()).toEqual([]);
  });

  it('that is removed by two at once is gone for both, and then not found', async () => {
    const [{ id }] = (await fork()) as [SandboxInfo];
    const both = await Promise.all([1, 2].map(() => test.call('DELETE', `/v1/sandboxes/${id}`)));
    expect(both.map((answer) => answer.status)).toEqual([204, 204]);
    expect(await test.call('DELETE', `/v1/sandboxes/${id}`)).toMatchObject({ status: 404 });
  });
});

describe('a daemon that starts again', () => {
  it('takes over what lives, and says of what has ended how', async () => {
    const [lives, ended] = (await fork({ n: 2, metadata: { k: 'v' } })) as [SandboxInfo, SandboxInfo];
    await test[Symbol.asyncDispose]();
    test = await startDaemon({
      home,
      openEngine: async (options) => {
        const { fakeEngine } = await import('./testing/fake-engine.js');
        const engine = fakeEngine(options);
        engine.controls.gone.add(ended.id);
        return engine;
      },
    });
    expect(await show(lives.id)).toMatchObject({
      state: 'running',
      metadata: { k: 'v' },
      hostname: lives.hostname,
    });
    expect(await show(ended.id)).toMatchObject({
      state: 'exited',
      exit: { kind: 'exited', code: 3 },
      memory_mib: 512,
    });
    const exec = await test.call('POST', `/v1/sandboxes/${lives.id}/exec`, { args: ['echo', 'hi'] });
    expect(exec.body).toMatchObject({ stdout: 'hi\n', exit_code: 0 });
    await restart();
    expect(await show(ended.id)).toMatchObject({ state: 'exited' });
  });

  it('removes what was half made, half removed, or belongs to nobody', async () => {
    const [{ id }] = (await fork()) as [SandboxInfo];
    await test[Symbol.asyncDispose]();
    const registry = new Registry(join(home, 'registry.db'));
    const row = registry.sandboxes()[0] as SandboxRow;
    const stray = 'sb-stray00000000000';
    registry.journal([
      { ...row, state: 'stopping' },
      { ...row, id: 'sb-half000000000000', state: 'forking', machine: null },
    ]);
    registry.close();
    const { mkdirSync } = await import('node:fs');
    mkdirSync(join(home, 'run', stray));
    test = await startDaemon({ home });
    expect(await list()).toEqual([]);
    expect(new Set(test.engine.swept)).toEqual(new Set([id, 'sb-half000000000000', stray]));
  });

  it('gives tags back when the registry was lost', async () => {
    await test[Symbol.asyncDispose]();
    for (const end of ['', '-wal', '-shm']) rmSync(join(home, `registry.db${end}`), { force: true });
    test = await startDaemon({ home });
    expect(await fork()).toMatchObject([{ snapshot_id: base }]);
  });
});

describe('a snapshot', () => {
  it('that a sandbox continues from cannot be removed, and says by whom', async () => {
    const [{ id }] = (await fork()) as [SandboxInfo];
    const refused = await test.call('DELETE', '/v1/snapshots/base');
    expect(refused).toMatchObject({
      status: 409,
      body: { code: 'snapshot_in_use', details: { dependents: [id] } },
    });
    await test.call('DELETE', `/v1/sandboxes/${id}`);
    expect((await test.call('DELETE', '/v1/snapshots/base')).status).toBe(204);
    expect((await test.call('GET', '/v1/snapshots/base/info')).status).toBe(404);
    expect((await test.call('GET', '/v1/snapshots')).body).toEqual([]);
  });

  it('is described, also all about it', async () => {
    expect((await test.call('GET', '/v1/snapshots')).body).toMatchObject([
      { tag: 'base', id: base, bootable: true },
    ]);
    expect((await test.call('GET', `/v1/snapshots/${base}`)).body).toMatchObject({
      tags: ['base'],
      status: 'ready',
    });
    const detail = (await test.call('GET', '/v1/snapshots/base/info')).body;
    expect(detail).toMatchObject({ memory_physical_bytes: 1, dependents: [], manifest: { id: base } });
    expect((await test.call('POST', '/v1/snapshots/base/verify')).body).toMatchObject({
      ok: true,
      bytes_read: 3,
    });
  });

  it('whose files are gone is not listed, and its tag says so', async () => {
    rmSync(join(home, 'snapshots', base), { recursive: true });
    expect((await test.call('GET', '/v1/snapshots')).body).toEqual([]);
    expect(await test.call('POST', '/v1/sandboxes', { snapshot_tag: 'base' })).toMatchObject({ status: 404 });
  });
});

describe('a build', () => {
  it('moves the tag; the old snapshot goes when its last sandbox has gone', async () => {
    const [{ id }] = (await fork()) as [SandboxInfo];
    const next = await test.build();
    expect(next).not.toBe(base);
    expect((await test.call<{ id: string }[]>('GET', '/v1/snapshots')).body.map((s) => s.id)).toEqual(
      expect.arrayContaining([base, next]),
    );
    expect(await fork()).toMatchObject([{ snapshot_id: next }]);
    await test.call('DELETE', `/v1/sandboxes/${id}`);
    const left = await eventually(
      async () => (await test.call<{ id: string }[]>('GET', '/v1/snapshots')).body,
      (all) => all.length === 1,
    );
    expect(left).toMatchObject([{ id: next, tags: ['base'] }]);
  });

  it('that fails leaves the tag where it was and tells why', async () => {
    test.engine.buildError = new EngineError('build_failed', 'step setup failed', {
      details: { step: 'setup' },
    });
    const { text } = await test.call('POST', '/v1/templates/build', { template: 'base', no_cache: true });
    const last: unknown = JSON.parse(text.trim().split('\n').at(-1) ?? '');
    expect(last).toMatchObject({
      type: 'failed',
      error: { code: 'build_failed', error: 'step setup failed' },
    });
    expect(await fork()).toMatchObject([{ snapshot_id: base }]);
  });

  it('that is asked for twice at once is done once; another of the same tag is busy', async () => {
    test.engine.buildMs = 200;
    test.engine.builds = 0;
    const build = (body: object) => test.call('POST', '/v1/templates/build', { template: 'base', ...body });
    const [first, second, other] = await Promise.all([
      build({ no_cache: true }),
      build({ no_cache: true }),
      build({ no_cache: false }),
    ]);
    expect(test.engine.builds).toBe(1);
    expect(first.text).toContain('"done"');
    expect(second.text.trim().split('\n').at(-1)).toBe(first.text.trim().split('\n').at(-1));
    expect(other).toMatchObject({ status: 503, body: { code: 'busy' } });
  });

  it('waits in POST /v1/snapshots and answers the snapshot', async () => {
    const answer = await test.call('POST', '/v1/snapshots', { template: 'base', tag: 'other' });
    expect(answer).toMatchObject({ status: 201, body: { template: 'base', status: 'ready' } });
    expect(await test.call('GET', '/v1/snapshots/other')).toMatchObject({ status: 200 });
    // What it is called: by its text, else by its file, else by its tag; the tag is that of the request, if there is one.
    const built = async (template: object, tag?: string) =>
      (await test.call<SnapshotInfo>('POST', '/v1/snapshots', { template, tag })).body;
    expect(await built({ yaml: 'x: 1', name: 'filed' })).toMatchObject({ template: 'filed', tag: 'filed' });
    expect(await built({ yaml: 'name: own', name: 'filed' })).toMatchObject({ template: 'own', tag: 'own' });
    expect(await built({ yaml: 'x: 1', name: 'no tag' }, 'given')).toMatchObject({
      template: 'given',
      tag: 'given',
    });
    expect(await built({ yaml: 'x: 1', name: 'no tag' })).toMatchObject({ code: 'invalid_argument' });
  });

  it('of nothing known leaves templates as they are', async () => {
    expect((await test.call('GET', '/v1/templates')).body).toMatchObject([
      { name: 'base', built: true, snapshot_id: base },
    ]);
    expect((await test.call('GET', '/v1/templates/base')).body).toMatchObject({
      yaml: 'name: base\n',
      logs: [],
    });
    expect((await test.call('GET', '/v1/templates/..%2Fbase')).status).toBe(404);
    expect(snapshotId('x')).toHaveLength(19);
  });
});
