import { execFileSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { BuildEvent } from '@forkd/api';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { client, failureOf, fork, sh } from '../sandbox/support.js';

let dir: string;

/** A root as small as one can be, made by hand: what others have from "docker export". */
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'fk-root-'));
  const root = join(dir, 'root');
  for (const name of ['bin', 'etc', 'root', 'home/me']) mkdirSync(join(root, name), { recursive: true });
  copyFileSync('/bin/busybox', join(root, 'bin/busybox'));
  for (const name of ['sh', 'ls', 'cat', 'stat', 'id']) symlinkSync('busybox', join(root, 'bin', name));
  writeFileSync(join(root, 'etc/passwd'), 'root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n');
  writeFileSync(join(root, 'etc/group'), 'root:x:0:\nme:x:1000:\n');
  writeFileSync(join(root, 'etc/mine'), 'my own\n');
  chmodSync(join(root, 'etc/mine'), 0o640);
  execFileSync('tar', ['-C', root, '-czf', join(dir, 'root.tar.gz'), '.']);
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const yaml = (rootfs: string) => `rootfs: ${rootfs}\nuser: me\nmemory: 128M\ndisk: 64M\n`;

async function build(text: string, tag: string): Promise<BuildEvent[]> {
  const events: BuildEvent[] = [];
  for await (const event of client().templates.build({ yaml: text, dir }, { tag })) events.push(event);
  return events;
}

it.each(['root', 'root.tar.gz'])(
  'a root file system of the host (%s) is a base',
  async (name) => {
    const tag = `own-${name.replaceAll('.', '-')}`;
    const events = await build(yaml(`./${name}`), tag);
    expect(events.at(-1)).toMatchObject({ type: 'done', cached: false });
    try {
      await using children = await fork(1, { snapshot: tag });
      const seen = await sh(children.box, 'id -un; stat -c "%a %U" /etc/mine; ls /dev/null', { user: 'me' });
      expect(seen.split('\n')).toEqual(['me', '640 root', '/dev/null']);
      // The same root makes the same snapshot.
      expect((await build(yaml(`./${name}`), tag)).at(-1)).toMatchObject({ type: 'done', cached: true });
    } finally {
      await client().snapshots.remove(tag);
    }
  },
  120_000,
);

it('what is no root file system is refused by name, before a machine starts', async () => {
  writeFileSync(join(dir, 'photo.tar'), 'no tar');
  const [last] = (await build(yaml('photo.tar'), 'own-bad')).slice(-1);
  expect(last).toMatchObject({ type: 'failed', error: { code: 'build_failed' } });
  expect(JSON.stringify(last)).toMatch(/photo\.tar cannot be a root file system/);
  const missing = await failureOf(build(yaml('none.tar'), 'own-bad'));
  expect(missing.message).toMatch(/none\.tar cannot be read \(ENOENT\)/);
});
