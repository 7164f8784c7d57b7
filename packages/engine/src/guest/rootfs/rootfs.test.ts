import { execFileSync } from 'node:child_process';
import { chmod, link, mkdir, mkdtemp, readFile, rm, symlink, truncate, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { pack } from 'tar-stream';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { RootfsCheck } from './check.js';
import { findRootfs, makeRootfsTar, rootfsInputs } from './rootfs.js';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'forkd-rootfs-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

type Header = Parameters<ReturnType<typeof pack>['entry']>[0];
type Entries = readonly (Header & { content?: string })[];

const etc: Header = { name: 'etc/', type: 'directory', mode: 0o755 };

async function archive(entries: Entries): Promise<Buffer> {
  const to = pack();
  for (const { content = '', ...header } of entries) to.entry(header, content);
  to.finalize();
  const chunks: Buffer[] = [];
  for await (const chunk of to) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}

async function repacked(path: string, lines?: string[]): Promise<string> {
  const to = join(dir, 'out.tar');
  const onProgress = (line: string) => lines?.push(line);
  await makeRootfsTar(await findRootfs(path), to, { home: dir, onProgress });
  return execFileSync('tar', ['-tvf', to, '--numeric-owner', '--full-time'], { encoding: 'utf8' });
}

async function written(entries: Entries): Promise<string> {
  const path = join(dir, 'in.tar');
  await writeFile(path, await archive(entries));
  return path;
}

describe('a root file system in a tar', () => {
  it('keeps modes, owners, times, links; devices are left out and counted', async () => {
    const mtime = new Date('2020-02-03T04:05:06Z');
    const path = await written([
      { name: './', type: 'directory' },
      { ...etc, name: './etc/' },
      { name: './etc/a', mode: 0o4755, uid: 7, gid: 8, mtime, content: 'hello' },
      { name: './etc/hard', type: 'link', linkname: './etc/a' },
      { name: './etc/soft', type: 'symlink', linkname: '/absolute' },
      { name: './etc/', type: 'directory', mode: 0o700 },
      { name: './etc/sda', type: 'block-device', devmajor: 8, devminor: 0 },
      { name: './etc/pipe', type: 'fifo' },
    ]);
    const lines: string[] = [];
    const listing = await repacked(path, lines);
    expect(listing).toMatch(/^-rwsr-xr-x 7\/8 +5 2020-02-03 0\d:05:06 etc\/a$/m);
    expect(listing).toMatch(/etc\/hard link to etc\/a$/m);
    expect(listing).toMatch(/etc\/soft -> \/absolute$/m);
    expect(listing).toMatch(/^prw/m);
    expect(listing).not.toContain('sda');
    expect(listing.match(/ etc\/?$/gm)).toHaveLength(1);
    expect(lines).toEqual(['left out: 1 devices and sockets']);
  });

  it.each([
    ['an absolute name', [{ name: '/etc/a' }], /"\/etc\/a" is absolute/],
    ['a name that leads out', [{ name: 'etc/../../a' }], /leads out of it/],
    ['a file twice', [etc, { name: 'etc/a' }, { name: './etc//a' }], /has ".\/etc\/\/a" twice/],
    ['a directory that becomes a file', [etc, { name: 'etc' }], /twice/],
    [
      'a way through a link',
      [etc, { name: 'etc/l', type: 'symlink', linkname: '/root' }, { name: 'etc/l/a' }],
      /leads through "etc\/l", which is a symlink/,
    ],
    ['a hard link out', [etc, { name: 'etc/h', type: 'link', linkname: '../../x' }], /leads out of it/],
    [
      'a hard link to an absolute name',
      [{ name: 'h', type: 'link', linkname: '/etc/shadow' }],
      /is absolute/,
    ],
    [
      'a hard link to nothing',
      [etc, { name: 'etc/h', type: 'link', linkname: 'etc/i' }],
      /no file before it/,
    ],
    ['a newline in a name', [{ name: 'a\nb' }], /newline/],
    ['the layers of an image', [{ name: 'manifest.json' }, { name: 'x' }], /layers of an image/],
    ['a deletion of a layer', [etc, { name: 'etc/.wh.a' }], /marks a deletion/],
    ['something else', [{ name: 'photo.jpg' }], /none of bin, usr, etc, sbin/],
  ] satisfies [string, Entries, RegExp][])('is refused with %s', async (_what, entries, message) => {
    const path = await written(entries);
    await expect(repacked(path)).rejects.toMatchObject({ code: 'build_failed' });
    await expect(repacked(path)).rejects.toThrow(message);
  });

  it('may have more than one entry only up to a limit, and files only up to a size', () => {
    const check = new RootfsCheck('x', { entries: 2, bytes: 100 });
    const file = (name: string, size: number) => ({ name, type: 'file', size });
    check.take(file('a', 60));
    expect(() => check.take(file('b', 60))).toThrow(/more than 0 MiB/);
    const other = new RootfsCheck('x', { entries: 1, bytes: 100 });
    other.take(file('a', 1));
    expect(() => other.take(file('b', 1))).toThrow(/more than 1 entries/);
  });

  it.each([
    ['gzip', (data: Buffer) => gzipSync(data)],
    ['xz', (data: Buffer) => execFileSync('xz', ['-c'], { input: data })],
  ])('may be packed by %s; a half one is refused', async (_name, packed) => {
    const path = join(dir, 'in');
    const data = packed(await archive([etc, { name: 'etc/a', content: 'x'.repeat(100_000) }]));
    await writeFile(path, data);
    expect(await repacked(path)).toMatch(/100000 .* etc\/a$/m);
    await truncate(path, data.length >> 1);
    await expect(repacked(path)).rejects.toThrow(/cannot be a root file system/);
  });

  it('is refused when it ends in a file, or is no tar', async () => {
    const path = await written([etc, { name: 'etc/a', content: 'x'.repeat(5000) }]);
    await truncate(path, 2048);
    await expect(repacked(path)).rejects.toThrow(/cannot be a root file system/);
    await writeFile(path, 'no tar at all'.repeat(1000));
    await expect(repacked(path)).rejects.toThrow(/cannot be a root file system/);
  });
});

describe('a root file system in a directory', () => {
  it('is taken as it is, links as links', async () => {
    const root = join(dir, 'root');
    await mkdir(join(root, 'etc'), { recursive: true });
    await writeFile(join(root, 'etc/a'), 'x'.repeat(1 << 20));
    await chmod(join(root, 'etc/a'), 0o640);
    await writeFile(join(root, 'etc/empty'), '');
    await link(join(root, 'etc/a'), join(root, 'etc/b'));
    await symlink('/etc/shadow', join(root, 'etc/out'));
    await symlink('..', join(root, 'etc/up'));
    const socket = createServer().listen(join(root, 'etc/socket'));
    const lines: string[] = [];
    const listing = await repacked(root, lines).finally(() => socket.close());
    expect(listing).toMatch(/^-rw-r----- 0\/0 +1048576 .* etc\/a$/m);
    expect(listing).toMatch(/etc\/b link to etc\/a$/m);
    expect(listing).toMatch(/etc\/out -> \/etc\/shadow$/m);
    expect(listing.match(/^l/gm)).toHaveLength(2);
    expect(lines).toEqual(['left out: 1 devices and sockets']);
  });

  it('is another one as soon as anything in it changes', async () => {
    const root = join(dir, 'root');
    await mkdir(join(root, 'etc'), { recursive: true });
    await writeFile(join(root, 'etc/a'), 'x');
    const digest = async () => JSON.stringify(await rootfsInputs(await findRootfs(root), { home: dir }));
    const first = await digest();
    expect(await digest()).toBe(first);
    await chmod(join(root, 'etc/a'), 0o600);
    expect(await digest()).not.toBe(first);
    expect(await readFile(join(root, 'etc/a'), 'utf8')).toBe('x');
  });

  it('must be there, and no device', async () => {
    await expect(findRootfs(join(dir, 'none'))).rejects.toThrow(/cannot be read \(ENOENT\)/);
    await expect(findRootfs('/dev/null')).rejects.toThrow(/neither a directory nor a regular file/);
  });
});
