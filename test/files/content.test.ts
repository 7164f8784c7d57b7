import { createHash, randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Children, failureOf, fork, sh } from '../sandbox/support.js';
import { eventually } from '../support/wait.js';

let children: Children;
beforeAll(async () => {
  children = await fork();
});
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
});
const box = () => children.box;
const files = () => children.box.files;
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

/** Bytes that come with pauses: a slow sender. */
async function* slowly(chunks: readonly Buffer[], between: () => Promise<unknown>): AsyncGenerator<Buffer> {
  for (const chunk of chunks) {
    yield chunk;
    await between();
  }
}

describe('content', () => {
  it.each([0, 1, 65_535, 65_536, 65_537, 5_000_000])('of %d bytes goes in and out exactly', async (size) => {
    const bytes = randomBytes(size);
    const info = await files().write('/root/content', bytes);
    expect(info).toMatchObject({ path: '/root/content', type: 'file', size });
    expect((await sh(box(), 'sha256sum < /root/content')).split(' ')[0]).toBe(sha256(bytes));
    expect(sha256(await files().read('/root/content'))).toBe(sha256(bytes));
  });

  it('comes and goes as streams, with its facts', async () => {
    const bytes = randomBytes(3_000_000);
    await files().write('/root/stream', Readable.from([bytes.subarray(0, 1), bytes.subarray(1)]), {
      mode: 0o640,
    });
    const { info, stream } = await files().readStream('/root/stream');
    expect(info).toMatchObject({ size: bytes.length, mode: 0o640, uid: 0, type: 'file' });
    expect(sha256(Buffer.concat(await stream.toArray()))).toBe(sha256(bytes));
  });

  it('can be read in parts; beyond the end there is nothing', async () => {
    await files().write('/root/part', '0123456789');
    const part = async (offset?: number, length?: number) =>
      (
        await files().read('/root/part', {
          ...(offset !== undefined && { offset }),
          ...(length !== undefined && { length }),
        })
      ).toString();
    expect(await part(3, 4)).toBe('3456');
    expect(await part(8, 100)).toBe('89');
    expect(await part(10)).toBe('');
    expect(await part(1000, 5)).toBe('');
    expect(await part(4_000_000_000_000)).toBe('');
    expect(await part(0, 0)).toBe('');
    expect(await part(undefined, 2)).toBe('01');
  });

  it('of a sparse file is what it reads as, and holes stay cheap', async () => {
    await sh(
      box(),
      'dd if=/dev/null of=/root/sparse bs=1 seek=3000000 2>/dev/null; printf end >> /root/sparse',
    );
    const bytes = await files().read('/root/sparse');
    expect(bytes.length).toBe(3_000_003);
    expect(bytes.subarray(0, 3_000_000).every((byte) => byte === 0)).toBe(true);
    expect(bytes.subarray(3_000_000).toString()).toBe('end');
  });

  it('of files of the kernel, whose size is not known, is read whole', async () => {
    expect(await files().readText('/proc/version')).toMatch(/^Linux version/);
    expect(await files().readText('/proc/self/status')).toMatch(/^Name:/);
    expect(
      await files()
        .readText('/sys/kernel/mm/transparent_hugepage/enabled')
        .catch(() => 'never'),
    ).toContain('never');
  });

  it('that changes while it is read ends all the same', async () => {
    await sh(box(), 'head -c 8000000 /dev/zero > /root/changing');
    const { stream } = await files().readStream('/root/changing');
    let bytes = 0;
    let cut = false;
    stream.on('error', () => undefined);
    for await (const chunk of stream) {
      bytes += (chunk as Buffer).length;
      if (!cut) {
        cut = true;
        await sh(box(), ': > /root/changing');
      }
    }
    expect(bytes).toBeLessThanOrEqual(8_000_000);
    expect((await files().stat('/root/changing')).size).toBe(0);
  });

  it('that grows without end can be read in part, and left', async () => {
    const writer = await box().run({ shell: 'exec yes > /root/growing' });
    await sh(box(), 'while [ ! -s /root/growing ]; do usleep 20000; done');
    const first = await files().read('/root/growing', { length: 100_000 });
    expect(first.length).toBeLessThanOrEqual(100_000);
    const { stream } = await files().readStream('/root/growing');
    stream.on('error', () => undefined).destroy();
    writer.close();
    expect(await sh(box(), 'rm /root/growing; echo well')).toBe('well');
  });
});

describe('a write', () => {
  it('replaces atomically: a reader sees the old file or the new, and holds what it has opened', async () => {
    const old = 'o'.repeat(200_000);
    const fresh = 'n'.repeat(200_000);
    await files().write('/root/atomic', old);
    const watcher = await box().run({
      shell: `exec 3< /root/atomic; while [ ! -e /root/stop ]; do s=$(sha256sum < /root/atomic); [ "$s" = "$l" ] || echo "$s"; l=$s; done; cat <&3 | sha256sum`,
    });
    watcher.stderr?.resume();
    const seen = watcher.stdout.toArray();
    const chunks = Array.from({ length: 10 }, (_, i) =>
      Buffer.from(fresh.slice(i * 20_000, (i + 1) * 20_000)),
    );
    await files().write(
      '/root/atomic',
      slowly(chunks, () => sh(box(), 'usleep 20000')),
    );
    await sh(box(), 'usleep 200000; touch /root/stop');
    const hashes = Buffer.concat(await seen)
      .toString()
      .trim()
      .split('\n')
      .map((line) => line.split(' ')[0]);
    const [o, n] = [sha256(Buffer.from(old)), sha256(Buffer.from(fresh))];
    expect(hashes).toEqual([o, n, o]);
  });

  it('that fails amid its content leaves the old file, and nothing else', async () => {
    await sh(box(), 'mkdir -p /root/failed');
    await files().write('/root/failed/file', 'old');
    async function* broken(): AsyncGenerator<Buffer> {
      yield Buffer.alloc(100_000);
      throw new Error('the disk of the sender broke');
    }
    await expect(files().write('/root/failed/file', broken())).rejects.toThrow();
    const gone = new AbortController();
    const aborted = files().write(
      '/root/failed/other',
      slowly([Buffer.alloc(100_000), Buffer.alloc(100_000)], async () => gone.abort()),
      { signal: gone.signal },
    );
    expect(await failureOf(aborted)).toMatchObject({ code: 'cancelled' });
    await eventually(async () => ((await sh(box(), 'ls -A /root/failed')) === 'file' ? true : undefined));
    expect(await files().readText('/root/failed/file')).toBe('old');
  });

  it('keeps mode and owner of what it replaces, and takes a mode when told', async () => {
    await sh(box(), 'echo old > /root/moded; chmod 751 /root/moded; chown 1000:1000 /root/moded');
    await files().write('/root/moded', 'new');
    expect(await files().stat('/root/moded')).toMatchObject({ mode: 0o751, uid: 1000, gid: 1000 });
    await files().write('/root/moded', 'new', { mode: 0o600 });
    expect((await files().stat('/root/moded')).mode).toBe(0o600);
    expect((await files().write('/root/unmoded', 'x')).mode).toBe(0o644);
    expect((await files().write('/root/suid', 'x', { mode: 0o4755 })).mode).toBe(0o4755);
  });

  it('goes through a symbolic link to what it names', async () => {
    await sh(box(), 'mkdir -p /root/l; echo old > /root/l/target; ln -sf target /root/l/link');
    await files().write('/root/l/link', 'new');
    expect(await sh(box(), 'readlink /root/l/link; cat /root/l/target')).toBe('target\nnew');
  });

  it('makes parents only when told', async () => {
    expect(await failureOf(files().write('/root/p/a/b/file', 'x'))).toMatchObject({ code: 'file_not_found' });
    await files().write('/root/p/a/b/file', 'x', { mkdirs: true });
    expect(await files().readText('/root/p/a/b/file')).toBe('x');
    expect(await failureOf(files().write('/root/p/a/b/file/c', 'x', { mkdirs: true }))).toMatchObject({
      code: 'not_a_directory',
    });
  });

  it('on a full disk says so, leaves the old file and nothing half written', async () => {
    await using own = await fork();
    await sh(own.box, 'mkdir /root/d; echo old > /root/d/file; sync');
    const free = Number(await sh(own.box, "df -m / | awk 'NR==2 {print $4}'"));
    await own.box.exec(
      { shell: 'dd if=/dev/zero of=/root/fill bs=1M 2>/dev/null; true' },
      { timeoutSecs: 100 },
    );
    const error = await failureOf(own.box.files.write('/root/d/file', Buffer.alloc(4_000_000)));
    expect(error).toMatchObject({ code: 'guest_no_space', status: 507 });
    expect(error.message).toContain('/root/d/file');
    expect(await sh(own.box, 'ls -A /root/d; cat /root/d/file')).toBe('file\nold');
    expect(free).toBeGreaterThan(10);
    await own.box.files.remove('/root/fill');
    await own.box.files.write('/root/d/file', 'new');
    expect(await own.box.files.readText('/root/d/file')).toBe('new');
  });

  it('of the same file at once leaves one of them whole', async () => {
    const contents = ['a', 'b', 'c', 'd'].map((letter) => letter.repeat(300_000));
    await Promise.all(contents.map((content) => files().write('/root/race', content)));
    expect(contents).toContain(await files().readText('/root/race'));
    expect(await sh(box(), 'ls -A /root | grep -c "race"')).toBe('1');
  });
});
