import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { chmod, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { newId } from '../ids.js';
import type { Manifest } from './manifest.js';
import { sealPart } from './seal.js';
import { SnapshotStore } from './store.js';

const MEMORY = 4 * 4096;
const sha = '0'.repeat(64);

let home: string;
let store: SnapshotStore;
beforeEach(async () => {
  home = mkdtempSync(join(tmpdir(), 'forkd-durable-'));
  store = await openStore('first');
});
afterEach(async () => {
  await store.settled();
  rmSync(home, { recursive: true });
});

/** The store as a daemon has it under a boot of the host. */
async function openStore(bootId: string): Promise<SnapshotStore> {
  const opened = new SnapshotStore(home, bootId);
  await opened.open();
  return opened;
}

/** Writes a snapshot, over another one where `below` says so. */
async function write(below?: Manifest): Promise<Manifest> {
  const id = newId('sn');
  await using draft = await store.draft(id);
  const part = async (name: string) => {
    writeFileSync(join(draft.dir, name), Buffer.alloc(MEMORY, name));
    return await sealPart(join(draft.dir, name), name);
  };
  const files = { memory: await part('memory'), state: await part('state'), disk: await part('disk') };
  const chain = below ? [...(below.branch?.chain ?? []), below.id] : [];
  return await draft.commit({
    ...common,
    id,
    files,
    ...(below && {
      branch: {
        ...{ parent: below.id, chain, sandbox: 'sb-1', mode: 'live', pauseMs: 1, lowerDisks: [] },
        extents: [{ kind: 'data', guestOffset: 0, length: MEMORY, fileOffset: 0 }],
      },
    }),
  });
}

const common: Omit<Manifest, 'id' | 'files'> = {
  format: 1,
  createdAt: 1,
  template: { name: 'none', digest: sha, interpreters: [], user: '', env: {}, prime: [] },
  machine: {
    ...{ engine: 'qemu', engineVersion: '7.2.0', engineSha256: sha, firmware: {}, machineType: 'microvm' },
    ...{ cpuModel: 'max', cpuFlags: [], accelerator: 'tcg', kernel: '6.1', kernelSha256: sha },
    ...{ agentProtocol: 1, tscKhz: 1 },
  },
  ...{ memoryBytes: MEMORY, vcpus: 1, diskBytes: MEMORY },
  image: { name: '', sha256: sha, bytes: 0 },
  build: { ms: 1, bootMs: 1, warmMs: 1 },
};

const mark = (id: string) => join(store.directory(id), 'durable');

async function alter(id: string, name: string): Promise<void> {
  const path = join(store.directory(id), name);
  const bytes = await readFile(path);
  bytes[5000] = bytes[5000]! ^ 1;
  await chmod(path, 0o600);
  writeFileSync(path, bytes);
  await chmod(path, 0o444);
}

describe('a snapshot', () => {
  it('is durable once it was synced, with what it stands on, and stays so', async () => {
    const base = await write();
    const top = await write(base);
    expect([base, top].map(({ id }) => store.isDurable(id))).toEqual([false, false]);
    await store.durable(top.id);
    expect([base, top].map(({ id }) => store.isDurable(id))).toEqual([true, true]);
    store = await openStore('second');
    expect(await store.recover()).toEqual({ resumed: [], verified: [], failed: [] });
    expect(store.isDurable(top.id)).toBe(true);
  });

  it('is durable when it was made before boots were written down', async () => {
    const { id } = await write();
    const path = join(store.directory(id), 'manifest.json');
    const { bootId: _, ...older } = JSON.parse(await readFile(path, 'utf8'));
    rmSync(path);
    writeFileSync(path, JSON.stringify(older), { mode: 0o444 });
    store = await openStore('second');
    await store.manifest(id);
    expect(store.isDurable(id)).toBe(true);
  });

  it('that is removed while it is synced leaves nothing', async () => {
    const { id } = await write();
    const syncing = store.durable(id);
    syncing.catch(() => {});
    await store.remove(id);
    const ended = await syncing.then(
      () => 'synced',
      (error: { code: string }) => error.code,
    );
    expect(['synced', 'cancelled']).toContain(ended);
    expect(existsSync(store.directory(id))).toBe(false);
    await expect(store.manifest(id)).rejects.toMatchObject({ code: 'snapshot_not_found' });
  });

  it('that cannot be synced has failed', async () => {
    const { id } = await write();
    rmSync(join(store.directory(id), 'state'));
    await expect(store.durable(id)).rejects.toMatchObject({ code: 'ENOENT' });
    await expect(store.manifest(id)).rejects.toMatchObject({
      code: 'snapshot_corrupt',
      message: expect.stringMatching(/could not be synced/),
    });
  });
});

describe('a start', () => {
  it('under the same boot syncs what is left', async () => {
    const { id } = await write();
    store = await openStore('first');
    expect(await store.recover()).toMatchObject({ resumed: [id], failed: [] });
    await store.settled();
    expect(existsSync(mark(id))).toBe(true);
  });

  it('under another boot reads what is not durable: what is whole is durable then', async () => {
    const base = await write();
    const top = await write(base);
    store = await openStore('second');
    expect(await store.recover()).toEqual({ resumed: [], verified: [base.id, top.id], failed: [] });
    expect(existsSync(mark(top.id))).toBe(true);
  });

  it.each(['memory', 'state', 'disk'])(
    'under another boot fails one whose %s is not what was written',
    async (name) => {
      const base = await write();
      const top = await write(base);
      const other = await write();
      await alter(base.id, name);
      store = await openStore('second');
      const report = await store.recover();
      expect(report.verified).toEqual([other.id]);
      expect(report.failed.map(({ id }) => id)).toEqual([base.id, top.id]);
      for (const { id } of [base, top])
        await expect(store.manifest(id)).rejects.toMatchObject({
          code: 'snapshot_corrupt',
          message: expect.stringContaining(`${name}: bytes 0 to ${MEMORY} (chunk 0) were altered`),
        });
      await store.remove(top.id);
      await store.remove(base.id);
      expect(await store.list()).toEqual([other.id]);
    },
  );
});
