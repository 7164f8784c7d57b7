import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { afterKill } from '../testing/registry.js';
import { Registry, type SandboxRow } from './registry.js';

let dir: string;
let path: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'forkd-registry-'));
  path = join(dir, 'registry.db');
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const row: SandboxRow = {
  id: 'sb-0000000000000000',
  snapshotId: 'sn-0000000000000000',
  snapshotRef: 'base',
  state: 'forking',
  createdAt: 1,
  hostname: 'h',
  generation: null,
  pid: null,
  metadata: { 'a "b"': "c'\n" },
  machine: null,
  exit: null,
};

const readBack = (): SandboxRow[] => afterKill(path, (registry) => registry.sandboxes());

describe('a registry', () => {
  it('has what was journaled at once, and what was recorded soon', async () => {
    const registry = new Registry(path);
    registry.journal([row]);
    expect(readBack()).toEqual([row]);
    const machine = { engine: 'qemu', accelerator: 'tcg', memory_mib: 1, vcpus: 1 };
    const running = { ...row, state: 'running' as const, pid: 7, generation: 'ff', machine };
    registry.record(running);
    await new Promise((resolve) => setImmediate(resolve));
    expect(readBack()).toEqual([running]);
    registry.record(running);
    registry.forget(row.id);
    registry.close();
    expect(readBack()).toEqual([]);
  });

  it('moves tags and drops snapshots with theirs', () => {
    const registry = new Registry(path);
    registry.moveTag('a', { id: 'sn-1', template: 't', createdAt: 1 });
    registry.moveTag('b', { id: 'sn-1', template: 't', createdAt: 1 });
    registry.moveTag('b', { id: 'sn-2', template: 't', createdAt: 2 });
    expect([...registry.tags()]).toEqual([
      ['a', 'sn-1'],
      ['b', 'sn-2'],
    ]);
    registry.dropSnapshot('sn-1');
    expect([...registry.tags()]).toEqual([['b', 'sn-2']]);
    registry.close();
  });

  it('refuses to announce what it cannot write, and does not write it later', () => {
    const registry = new Registry(path);
    const impossible = { ...row, id: 'sb-1', state: 'flying' as 'running' };
    expect(() => registry.journal([row, impossible])).toThrow(/cannot be used/);
    registry.flush();
    expect(readBack()).toEqual([]);
    registry.close();
  });

  it('says that it is behind when it cannot write what has happened', () => {
    const told: unknown[] = [];
    const registry = new Registry(path, (error) => told.push(error));
    registry.record({ ...row, state: 'flying' as 'running' });
    registry.flush();
    expect(told).toMatchObject([{ code: 'home_unusable' }]);
    registry.record(row);
    registry.close();
    expect(readBack()).toEqual([row]);
  });

  it('maps no file, and can be opened again once it is closed', () => {
    const registry = new Registry(path);
    registry.journal([row]);
    expect(readFileSync('/proc/self/maps', 'utf8')).not.toContain(dir);
    expect(readdirSync(dir).sort()).toEqual(['registry.db', 'registry.db-wal']);
    registry.close();
    expect(readdirSync(dir)).toEqual(['registry.db']);
    const next = new Registry(path);
    expect(next.sandboxes()).toEqual([row]);
    next.close();
  });
});
