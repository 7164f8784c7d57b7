import { mkdir, mkdtemp, open, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { LIVE_COPY_BYTES, MOST_COPY_BYTES, RawDisk } from './raw-disk.js';

const MiB = 1024 * 1024;

let home: string;
beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'forkd-raw-'));
});
afterAll(() => rm(home, { recursive: true, force: true }));

/** A run directory whose disk has so many bytes of data, and the directory of a snapshot to be. */
async function made(name: string, data: number): Promise<{ dir: string; draft: string }> {
  const dir = join(home, name);
  const draft = join(dir, 'draft');
  await mkdir(draft, { recursive: true });
  await using file = await open(join(dir, 'disk'), 'w');
  await file.truncate(8192 * MiB);
  for (let at = 0; at < data; at += MiB) await file.write(Buffer.alloc(MiB, 1), 0, MiB, at * 3);
  return { dir, draft };
}

describe('the disk of a Firecracker', () => {
  it('with little in it is copied into the snapshot in the pause; its holes do not count', async () => {
    const { dir, draft } = await made('small', 2 * MiB);
    const disk = new RawDisk({ dir });
    expect(await disk.whySlow(draft)).toBeUndefined();
    expect(await disk.prepare(8192 * MiB, draft)).toEqual({ below: 'disk', node: join(draft, 'disk') });
    expect(await disk.collect()).toEqual([{ name: 'disk', whole: true }]);
    expect(await readdir(draft)).toEqual([]); // no probe is left
    expect(await readdir(dir)).toContain('no-memory');
  });

  it('with more than a live branch may copy says so with numbers, where blocks are not shared', async () => {
    const { dir, draft } = await made('large', LIVE_COPY_BYTES + 2 * MiB);
    const disk = new RawDisk({ dir });
    const reason = await disk.whySlow(draft);
    if (reason !== undefined) expect(reason).toMatch(/the disk has 6[6-9] MiB.*at most 64 MiB/);
    else expect(await sharing(dir)).toBe(true);
    await disk.prepare(8192 * MiB, draft);
  });

  it('with more than any pause may copy is refused with numbers', async () => {
    const { dir, draft } = await made('huge', MiB);
    const disk = new RawDisk({ dir }, { live: 64 * 1024, most: 512 * 1024 });
    if (await sharing(dir)) return expect(await disk.whySlow(draft)).toBeUndefined();
    await expect(disk.prepare(8192 * MiB, draft)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(/has [12] MiB; at most 1 MiB/),
    });
    expect(MOST_COPY_BYTES).toBeGreaterThan(LIVE_COPY_BYTES);
  });

  it('that is missing is told', async () => {
    const { dir, draft } = await made('missing', MiB);
    await rm(join(dir, 'disk'));
    await expect(new RawDisk({ dir }).whySlow(draft)).rejects.toThrow(/ENOENT/);
  });
});

/** Whether this file system shares blocks between files. */
async function sharing(dir: string): Promise<boolean> {
  const { constants, copyFile } = await import('node:fs/promises');
  return await copyFile(join(dir, 'disk'), join(dir, 'shared'), constants.COPYFILE_FICLONE_FORCE).then(
    () => true,
    () => false,
  );
}
