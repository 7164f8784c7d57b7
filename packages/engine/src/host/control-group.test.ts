import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { frozenGroupOf, memoryLeftBy } from './control-group.js';

/** Control groups as files: real ones cannot be made wherever tests run. */
let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'forkd-cgroup-'));
});
afterEach(() => rmSync(root, { recursive: true }));

function put(path: string, text: string): void {
  mkdirSync(join(root, path, '..'), { recursive: true });
  writeFileSync(join(root, path), text);
}

const left = () => memoryLeftBy(7, { cgroup: join(root, 'cgroup'), proc: join(root, 'proc') });

describe('the memory that control groups leave', () => {
  it('is that of the tightest one above, where page cache counts as free', async () => {
    put('proc/7/cgroup', '0::/a/b\n');
    put('cgroup/a/memory.max', '1000\n');
    put('cgroup/a/memory.current', '900\n');
    put('cgroup/a/memory.stat', 'anon 600\ninactive_file 50\nactive_file 20\n');
    put('cgroup/a/b/memory.max', 'max\n');
    put('cgroup/a/b/memory.current', '800\n');
    expect(await left()).toBe(170);
  });

  it('is known in version 1 too', async () => {
    put('proc/7/cgroup', '3:cpu:/x\n2:memory:/a\n');
    put('cgroup/memory/a/memory.limit_in_bytes', '500\n');
    put('cgroup/memory/a/memory.usage_in_bytes', '400\n');
    put('cgroup/memory/a/memory.stat', 'total_inactive_file 10\ntotal_active_file 5\n');
    expect(await left()).toBe(115);
  });

  it('is nothing beyond the limit', async () => {
    put('proc/7/cgroup', '0::/a\n');
    put('cgroup/a/memory.max', '100\n');
    put('cgroup/a/memory.current', '150\n');
    put('cgroup/a/memory.stat', '');
    expect(await left()).toBe(0);
  });

  it('has no bound where no limit is set, or none can be seen', async () => {
    put('proc/7/cgroup', '0::/gone\n');
    expect(await left()).toBeNull();
  });
});

describe('a frozen control group', () => {
  const frozen = () => frozenGroupOf(7, { cgroup: join(root, 'cgroup'), proc: join(root, 'proc') });

  it.each([
    ['0::/a\n', 'a/cgroup.events', 'populated 1\nfrozen 1\n', 'a'],
    ['0::/a\n', 'a/cgroup.events', 'populated 1\nfrozen 0\n', null],
    ['4:freezer:/b\n0::/\n', 'freezer/b/freezer.state', 'FROZEN\n', 'freezer/b'],
    ['4:freezer:/b\n0::/\n', 'freezer/b/freezer.state', 'THAWED\n', null],
    ['0::/gone\n', 'a/cgroup.events', 'frozen 1\n', null],
  ])('is found by what the kernel says: %j, %s %j', async (groups, file, text, found) => {
    put('proc/7/cgroup', groups);
    put(join('cgroup', file), text);
    expect(await frozen()).toBe(found === null ? null : join(root, 'cgroup', found));
  });
});
