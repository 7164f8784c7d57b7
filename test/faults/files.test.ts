import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  copyFileSync,
  readdirSync,
  renameSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ended } from '../sandbox/home.js';
import { failureOf, fork, sh } from '../sandbox/support.js';
import { eventually } from '../support/wait.js';
import { type FaultHome, faultHome, isRoot } from './home.js';

/** Reads of all programs that a guest has: of its image, and of memory that it has from the template. What /etc says of a machine is its own. */
const readAll = 'find /bin /sbin /usr -xdev -type f 2>/dev/null | sort | xargs cat 2>/dev/null | md5sum';

async function snapshotOf(home: FaultHome) {
  const { id, dir } = await home.client.snapshots.get('busybox');
  return { id, file: (name: string) => join(dir, name) };
}

/** Drops what the host's page cache has of files; all of it where we may. */
function dropCache(paths: readonly string[]): void {
  execFileSync('sync');
  for (const path of paths) execFileSync('dd', [`if=${path}`, 'iflag=nocache', 'count=0', 'status=none']);
  if (isRoot) writeFileSync('/proc/sys/vm/drop_caches', '1');
}

/** MiB of a file that the host's page cache has. */
const cached = (path: string) =>
  Number(
    execFileSync('fincore', ['--bytes', '--noheadings', '--output', 'RES', path], { encoding: 'utf8' }),
  ) /
  2 ** 20;

describe('children of a snapshot run on', () => {
  it('when the page cache is dropped under them, again and again, and so do new ones and branches', async () => {
    await using home = await faultHome();
    const { client } = home;
    await using children = await fork(2, {}, client);
    const { file } = await snapshotOf(home);
    const images = readdirSync(join(home.path, 'cache/images')).map((name) =>
      join(home.path, 'cache/images', name),
    );
    const files = [file('memory'), file('disk'), ...images.filter((path) => statSync(path).isFile())];
    const sums = await Promise.all(children.boxes.map((box) => sh(box, readAll)));
    expect(new Set(sums).size).toBe(1);
    const before = cached(file('memory'));
    for (let round = 0; round < 3; round++) {
      dropCache(files);
      expect(
        await Promise.all(
          children.boxes.map((box) => sh(box, `sync; echo 3 > /proc/sys/vm/drop_caches; ${readAll}`)),
        ),
      ).toEqual(sums);
    }
    dropCache(files);
    expect(cached(file('memory'))).toBeLessThanOrEqual(before);
    await using more = await fork(1, {}, client);
    expect(await sh(more.box, readAll)).toBe(sums[0]);
    const { id } = await children.box.branch();
    dropCache(files);
    {
      await using grandchildren = await fork(1, { snapshot: id }, client);
      expect(await sh(grandchildren.box, readAll)).toBe(sums[0]);
    }
    for (const box of children.boxes) expect(await box.info()).toMatchObject({ state: 'running' });
    await client.snapshots.remove(id);
    expect(await client.snapshots.verify('busybox')).toMatchObject({ ok: true });
  });

  const harms: [string, (path: string) => void, RegExp][] = [
    [
      'a copy that was cut short',
      (path) => {
        chmodSync(path, 0o644);
        truncateSync(path, statSync(path).size / 2);
        chmodSync(path, 0o444);
      },
      /bytes/,
    ],
    ['a copy of another owner', (path) => chownSync(path, 12_345, 12_345), /12345/],
    ['a copy that can be written to', (path) => chmodSync(path, 0o644), /writable/],
  ];
  it.runIf(isRoot).each(harms)(
    'when its memory is replaced by %s; new ones are refused',
    async (_, harm, said) => {
      await using home = await faultHome();
      const { client } = home;
      await using children = await fork(2, {}, client);
      const { id, file } = await snapshotOf(home);
      const sum = await sh(children.box, readAll);
      // As a careless restore from a backup does: a new file takes the name.
      const copy = file('memory.new');
      copyFileSync(file('memory'), copy);
      chmodSync(copy, 0o444);
      harm(copy);
      renameSync(copy, file('memory'));
      const error = await failureOf(client.fork({ snapshot: 'busybox', n: 2 }));
      expect(error).toMatchObject({ code: 'snapshot_corrupt', status: 409 });
      expect(error.message).toContain(id);
      expect(error.message).toMatch(said);
      expect(error.remedy).toContain('template build');
      // They have the file that they were forked from, whatever has its name now.
      for (const box of children.boxes)
        expect(await sh(box, `echo 3 > /proc/sys/vm/drop_caches; ${readAll}`)).toBe(sum);
      // What would stand on the wrong file is refused too; the source does not notice.
      expect(await failureOf(children.box.branch())).toMatchObject({ code: 'snapshot_corrupt' });
      expect(await sh(children.box, 'echo on')).toBe('on');
      // The next daemon takes them over all the same.
      await home.end('SIGKILL');
      await home.start();
      for (const box of children.boxes) expect(await sh(box, readAll)).toBe(sum);
    },
  );
});

it('memory of the right size with other bytes in it is found by verify, and children that have the old file go on', async () => {
  await using home = await faultHome();
  const { client } = home;
  await using children = await fork(1, {}, client);
  const { file } = await snapshotOf(home);
  const sum = await sh(children.box, readAll);
  const { size } = statSync(file('memory'));
  writeFileSync(file('memory.new'), Buffer.alloc(size, 0x55), { mode: 0o444 });
  chmodSync(file('memory.new'), 0o444);
  renameSync(file('memory.new'), file('memory'));
  const report = await client.snapshots.verify('busybox');
  expect(report.ok).toBe(false);
  expect(report.problems[0]).toMatch(/^memory: .*altered/);
  expect(await sh(children.box, `echo 3 > /proc/sys/vm/drop_caches; ${readAll}`)).toBe(sum);
});

describe.runIf(isRoot)('memory that is cut short in place, under machines that map it', () => {
  /** What only root can do to a file that is read-only, and nobody should. */
  function cut(path: string): { bytes: number; now: number } {
    const bytes = statSync(path).size;
    truncateSync(path, 4096);
    return { bytes, now: 4096 };
  }

  it.each(['runs', 'is away'] as const)(
    'ends them while the daemon %s; it tells which file, its sizes, and what to do',
    async (daemon) => {
      await using home = await faultHome();
      const { client } = home;
      await using children = await fork(2, {}, client);
      const { file } = await snapshotOf(home);
      const pids = (await Promise.all(children.boxes.map((box) => box.info()))).map(({ pid }) => pid ?? 0);
      if (daemon === 'is away') await home.end('SIGKILL');
      const { bytes, now } = cut(file('memory'));
      // A guest that idles reads what it has: its timer's code is among the pages that are gone.
      await Promise.all(pids.map((pid) => ended(pid)));
      if (daemon === 'is away') await home.start();
      for (const box of children.boxes) {
        const { exit } = await eventually(async () => {
          const info = await box.info();
          return info.state === 'exited' ? info : undefined;
        });
        expect(exit).toMatchObject({ kind: 'signaled', signal: 'SIGBUS' });
        expect(exit?.reason).toContain(`${file('memory')} was cut short in place`);
        expect(exit?.reason).toContain(`it has ${now} bytes, ${bytes} were mapped`);
        expect(exit?.reason).toContain('build its template again');
        expect(exit?.reason).not.toMatch(/space|room/);
      }
      const error = await failureOf(client.fork({ snapshot: 'busybox' }));
      expect(error).toMatchObject({ code: 'snapshot_corrupt' });
    },
  );
});
