import {
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { forkd } from '../support/cli.js';
import { type Forked, fork } from '../support/sandboxes.js';

let box: Forked;
let dir: string;
beforeAll(async () => {
  box = await fork();
  dir = mkdtempSync(join(tmpdir(), 'fk-cp-'));
});
afterAll(async () => {
  rmSync(dir, { recursive: true, force: true });
  await box?.[Symbol.asyncDispose]();
});

describe('forkd cp', () => {
  it('carries a tree into a sandbox and back, with odd names, modes and links', async () => {
    const tree = join(dir, 'tree');
    mkdirSync(join(tree, 'sub', 'empty'), { recursive: true });
    const odd = ['with space', 'quote\'"', 'line\nbreak', 'ünïcode', '-dash', 'a:b'];
    for (const name of odd) writeFileSync(join(tree, 'sub', name), name);
    writeFileSync(join(tree, 'run.sh'), '#!/bin/sh\n', { mode: 0o755 });
    writeFileSync(join(tree, 'nothing'), '');
    symlinkSync('run.sh', join(tree, 'link'));

    expect(await forkd(['cp', tree, `${box.id}:/root/copy`])).toMatchObject({ code: 0 });
    expect(await forkd(['cp', `${box.id}:/root/copy`, join(dir, 'back')])).toMatchObject({ code: 0 });

    for (const name of odd) expect(readFileSync(join(dir, 'back', 'sub', name), 'utf8')).toBe(name);
    expect(statSync(join(dir, 'back', 'run.sh')).mode & 0o777).toBe(0o755);
    expect(statSync(join(dir, 'back', 'nothing')).size).toBe(0);
    expect(statSync(join(dir, 'back', 'sub', 'empty')).isDirectory()).toBe(true);
    expect(readlinkSync(join(dir, 'back', 'link'))).toBe('run.sh');
  });

  it('copies into a directory that exists', async () => {
    const file = join(dir, 'file.txt');
    writeFileSync(file, 'text');
    expect(await forkd(['cp', file, `${box.id}:/tmp`])).toMatchObject({ code: 0 });
    expect((await forkd(['exec', box.id, 'cat', '/tmp/file.txt'])).stdout).toBe('text');
  });

  it('streams from stdin and to stdout', async () => {
    const input = Buffer.from([0, 255, 10, 13, 128]);
    expect(await forkd(['cp', '-', `${box.id}:/tmp/bytes`], { input })).toMatchObject({ code: 0 });
    const { stdout } = await forkd(['exec', box.id, 'od', '-An', '-tx1', '/tmp/bytes']);
    expect(stdout.trim()).toBe('00 ff 0a 0d 80');
    expect((await forkd(['cp', `${box.id}:/tmp/bytes`, '-'])).code).toBe(0);
  });

  it('skips what cannot be copied, and says so', async () => {
    await forkd([
      'exec',
      box.id,
      'sh',
      '-c',
      'mkdir /tmp/odd && mkfifo /tmp/odd/pipe && echo x > /tmp/odd/file',
    ]);
    const result = await forkd(['cp', `${box.id}:/tmp/odd`, join(dir, 'odd')]);
    expect(result.code).toBe(70);
    expect(result.stderr).toContain('skipped: /tmp/odd/pipe is a fifo');
    expect(readFileSync(join(dir, 'odd', 'file'), 'utf8')).toBe('x\n');
  });

  it('is not led through links that the guest has made', async () => {
    await forkd(['exec', box.id, 'sh', '-c', `mkdir -p /tmp/trap && ln -s ${dir}/target /tmp/trap/a`]);
    mkdirSync(join(dir, 'target'));
    expect((await forkd(['cp', `${box.id}:/tmp/trap`, join(dir, 'trap')])).code).toBe(0);
    await forkd([
      'exec',
      box.id,
      'sh',
      '-c',
      'rm /tmp/trap/a && mkdir /tmp/trap/a && echo evil > /tmp/trap/a/f',
    ]);
    const result = await forkd(['cp', `${box.id}:/tmp/trap/.`, join(dir, 'trap')]);
    expect(result.code).toBe(73);
    expect(result.stderr).toContain('exists and is not a directory');
  });

  it.each([
    ['a file that is not there', (id: string) => [`${id}:/none`, '/tmp/x'], 66, '/none'],
    ['a local file that is not there', (id: string) => ['/none/at/all', `${id}:/tmp/x`], 66, '/none/at/all'],
    [
      'a path that goes through a file',
      (id: string) => [`${id}:/etc/passwd/x`, '/tmp/x'],
      64,
      '/etc/passwd/x',
    ],
  ])('refuses %s', async (_, args, code, named) => {
    const result = await forkd(['cp', ...args(box.id)]);
    expect(result.stderr).toContain(named);
    expect(result.code).toBe(code);
  });
});
