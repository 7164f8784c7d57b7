import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, open, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { ensureImage, ensureMerged } from './image.js';
import { PACKING, packWhole } from './packing.js';
import { run } from './run.js';

let dir: string;
let file: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'forkd-packing-'));
  file = join(dir, 'image');
  await mkdir(join(dir, 'tree'));
  // Lines that have something in common: blocks are packed, not stored, and a damaged one cannot be unpacked.
  const lines = Array.from(
    { length: 30_000 },
    () => `a line of its own: ${randomBytes(4).toString('hex')}\n`,
  );
  await writeFile(join(dir, 'tree/text'), lines.join(''));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

async function pack(damaged: boolean): Promise<void> {
  await run('mksquashfs', [join(dir, 'tree'), file, ...PACKING, '-noappend']);
  if (!damaged) return;
  await using handle = await open(file, 'r+');
  const { size } = await stat(file);
  for (let at = 4096; at < size / 2; at += 4096) await handle.write(Buffer.alloc(512, 0xff), 0, 512, at);
}

it('an image that cannot be read back is packed once more', async () => {
  const damages = [true, false];
  let packed = 0;
  await packWhole(file, () => pack(damages[packed++]!), {});
  expect(packed).toBe(2);
  await run('unsquashfs', ['-no-progress', '-pf', '/dev/null', file]);
});

it('an image that is never whole is a failed build that says what to look for', async () => {
  let packed = 0;
  const packing = packWhole(file, () => pack(packed++ < 9), {});
  await expect(packing).rejects.toMatchObject({
    code: 'build_failed',
    message: 'an image was packed 2 times, and could not be read back',
    remedy: expect.stringContaining('dmesg'),
  });
  expect(packed).toBe(2);
});

it('a base that was damaged in the cache is named, with what makes it anew', async () => {
  await pack(true);
  const base = { path: file, name: 'image', sha256: 'x', bytes: 1, cached: true };
  const set = { manager: 'pip', path: join(dir, 'set.tar'), sha256: 'y', lock: [], cached: false } as const;
  await run('tar', ['-C', join(dir, 'tree'), '-cf', set.path, '.']);
  await expect(ensureMerged(base, [{ ...set, lock: [] }], { home: dir })).rejects.toMatchObject({
    code: 'build_failed',
    message: expect.stringContaining(`the base of the image, ${file}, cannot be read`),
    remedy: expect.stringContaining('--no-cache'),
  });
});

it('an image of busybox that is made anew is the same, whatever the time', async () => {
  const make = () => ensureImage({ home: dir, base: 'busybox', packages: [], noCache: true });
  const [first, again] = [await make(), await make()];
  expect(again).toEqual(first);
  await using handle = await open(first.path);
  const superblock = (await handle.read(Buffer.alloc(96), 0, 96, 0)).buffer;
  expect(superblock.readUInt32LE(8)).toBe(0);
  const listed = await run('unsquashfs', ['-lln', '-UTC', first.path], { collect: true });
  expect(listed.toString()).toMatch(/ 1970-01-01 00:00 squashfs-root$/m);
});
