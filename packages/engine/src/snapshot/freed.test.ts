import { link, mkdir, mkdtemp, open, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { freedBytes } from './freed.js';

const KiB = 1024;
let home: string;
let one: string;
let two: string;
beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'forkd-freed-'));
  [one, two] = [join(home, 'one'), join(home, 'two')];
  await Promise.all([one, two].map((dir) => mkdir(dir)));
  await writeFile(join(one, 'disk'), Buffer.alloc(256 * KiB, 1));
  await link(join(one, 'disk'), join(two, 'lower'));
  await writeFile(join(two, 'own'), Buffer.alloc(64 * KiB, 1));
  await using holes = await open(join(two, 'memory'), 'w');
  await holes.truncate(64 * 1024 * KiB);
  await holes.write(Buffer.alloc(4 * KiB, 1), 0, 4 * KiB, 1024 * KiB);
});
afterAll(() => rm(home, { recursive: true, force: true }));

it('counts what a file has allocated, once, and only where no other name of it stays', async () => {
  const allocated = async (path: string) => (await stat(path)).blocks * 512;
  const shared = await allocated(join(one, 'disk'));
  const own = (await allocated(join(two, 'own'))) + (await allocated(join(two, 'memory')));
  expect(shared).toBeGreaterThanOrEqual(256 * KiB);
  expect(own).toBeGreaterThanOrEqual(68 * KiB);
  expect(own).toBeLessThan(1024 * KiB);
  expect(await freedBytes([one])).toBe(0);
  expect(await freedBytes([two])).toBe(own);
  expect(await freedBytes([one, two])).toBe(shared + own);
  expect(await freedBytes([join(home, 'none')])).toBe(0);
});
