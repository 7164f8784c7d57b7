import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Children, failureOf, fork, sh } from '../sandbox/support.js';

let children: Children;
beforeAll(async () => {
  children = await fork();
});
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
});
const box = () => children.box;
const files = () => children.box.files;

const odd = [
  '-rf',
  '--help',
  ' ',
  'with space',
  'trailing ',
  'line\nbreak',
  'quote\'"`$(x)',
  'back\\slash',
  'ünï€𝄞',
  'e\u0301',
  '...',
  '%2e%2e',
  '?query=1&x#y+z',
  '*',
  '\u0001\u007f',
  'x'.repeat(255),
  '€'.repeat(85),
];

describe('names', () => {
  it.each(odd)('%j is a name as any other', async (name) => {
    const path = `/root/odd/${name}`;
    await files().write(path, name, { mkdirs: true });
    expect(await files().readText(path)).toBe(name);
    expect(await files().stat(path)).toMatchObject({ name, path, size: Buffer.byteLength(name) });
    expect((await files().list('/root/odd')).map((entry) => entry.name)).toContain(name);
    await files().rename(path, '/root/odd/~');
    await files().rename('/root/odd/~', path);
    await files().remove(path);
    expect(await sh(box(), 'ls -A /root/odd | wc -l')).toBe('0');
  });

  it('that are not UTF-8 are listed beside the others', async () => {
    await sh(box(), `mkdir -p /root/raw; touch "$(printf '/root/raw/a\\377b')" /root/raw/c`);
    const names = (await files().list('/root/raw')).map(({ name }) => name);
    expect(names.sort()).toEqual(['a\ufffdb', 'c']);
    await files().remove('/root/raw', { recursive: true });
    expect(await failureOf(files().stat('/root/raw'))).toMatchObject({ code: 'file_not_found' });
  });

  it.each([
    ['too long', `/root/${'x'.repeat(300)}`, 'guest_invalid'],
    ['of a path that is too long', `/${'d/'.repeat(2500)}f`, 'guest_invalid'],
    ['with NUL', '/root/a\0b', 'invalid_argument'],
    ['empty', '', 'invalid_argument'],
    ['through a file', '/etc/passwd/x', 'not_a_directory'],
    ['not there', '/root/none/at/all', 'file_not_found'],
    ['a loop of links', '/root/loop', 'guest_invalid'],
  ])('%s are refused', async (_, path, code) => {
    await sh(box(), 'ln -sf loop /root/loop');
    for (const call of [() => files().read(path), () => files().write(path, 'x'), () => files().list(path)]) {
      const error = await failureOf(call());
      expect(error.code).toBe(code);
      expect(error.status).toBeLessThan(500);
      expect(error.remedy).not.toBe('');
    }
  });

  it('may be deep', async () => {
    const deep = `/root/deep${'/d'.repeat(500)}`;
    await files().mkdir(deep, { parents: true });
    await files().write(`${deep}/file`, 'deep');
    expect(await files().readText(`${deep}/file`)).toBe('deep');
    await files().remove('/root/deep', { recursive: true });
    expect(await sh(box(), 'ls -d /root/deep 2>/dev/null || echo gone')).toBe('gone');
  });

  it('that are relative start at a known place or are refused, never at the agent’s', async () => {
    const answer = await files()
      .read('etc/passwd')
      .then(
        (bytes) => bytes.toString(),
        (error: unknown) => error,
      );
    if (typeof answer === 'string') expect(answer).toContain('root:x:0:0');
    else expect(answer).toMatchObject({ status: expect.toSatisfy((status: number) => status < 500) });
    expect(await files().readText('/root/../etc/./passwd')).toContain('root:x:0:0');
  });
});

describe('directories', () => {
  it('are listed in order, hidden entries too, links as links', async () => {
    await sh(
      box(),
      'mkdir -p /root/dir/sub; cd /root/dir; echo 12345 > b; touch .hidden; ln -s /nowhere a; mkfifo p; chmod 600 b',
    );
    const list = await files().list('/root/dir');
    expect(list.map(({ name, type }) => [name, type])).toEqual([
      ['.hidden', 'file'],
      ['a', 'symlink'],
      ['b', 'file'],
      ['p', 'fifo'],
      ['sub', 'directory'],
    ]);
    expect(list[1]).toMatchObject({ target: '/nowhere', path: '/root/dir/a' });
    expect(list[2]).toMatchObject({ size: 6, mode: 0o600, uid: 0, gid: 0 });
    expect(Math.abs((list[2]?.mtime_ms ?? 0) - Date.now())).toBeLessThan(120_000);
    expect(await files().list('/root/dir/sub')).toEqual([]);
    expect(await files().stat('/root/dir/a')).toMatchObject({ type: 'symlink', target: '/nowhere' });
    expect(await files().stat('/')).toMatchObject({ type: 'directory', name: '/' });
  });

  it('of 20,000 entries are listed whole, while others are served', async () => {
    await sh(box(), 'mkdir /root/many; cd /root/many; seq 20000 | xargs touch', { timeoutSecs: 200 });
    const listing = files().list('/root/many');
    expect(await sh(box(), 'echo meanwhile')).toBe('meanwhile');
    const list = await listing;
    expect(list).toHaveLength(20_000);
    expect(new Set(list.map(({ name }) => name)).size).toBe(20_000);
    await files().remove('/root/many', { recursive: true });
  }, 300_000);

  it('are made once; again only with parents', async () => {
    await files().mkdir('/root/made', { mode: 0o700 });
    expect((await files().stat('/root/made')).mode).toBe(0o700);
    expect(await failureOf(files().mkdir('/root/made'))).toMatchObject({ code: 'file_exists', status: 409 });
    await files().mkdir('/root/made', { parents: true });
    await files().write('/root/made/file', 'x');
    expect(await failureOf(files().mkdir('/root/made/file', { parents: true }))).toMatchObject({
      code: expect.stringMatching(/file_exists|not_a_directory/),
    });
    expect(await failureOf(files().mkdir('/root/no/parent'))).toMatchObject({ code: 'file_not_found' });
    expect(await failureOf(files().remove('/root/made'))).toMatchObject({ code: 'directory_not_empty' });
    await files().remove('/root/made', { recursive: true });
  });

  it('are told apart from files', async () => {
    expect(await failureOf(files().read('/etc'))).toMatchObject({ code: 'is_a_directory' });
    expect(await failureOf(files().write('/etc', 'x'))).toMatchObject({ code: 'is_a_directory' });
    expect(await failureOf(files().list('/etc/passwd'))).toMatchObject({ code: 'not_a_directory' });
  });

  it('are renamed with what is in them, those of the image too', async () => {
    await sh(box(), 'mkdir -p /root/from; echo x > /root/from/f; mkdir -p /home/user/sub');
    await files().rename('/root/from', '/root/to');
    expect(await files().readText('/root/to/f')).toBe('x\n');
    await files().rename('/home/user', '/home/other');
    expect((await files().list('/home')).map(({ name }) => name)).toEqual(['other']);
    expect(await failureOf(files().rename('/root/none', '/root/x'))).toMatchObject({
      code: 'file_not_found',
    });
    expect(await failureOf(files().rename('/root/to', '/root/to/inside'))).toMatchObject({ status: 400 });
    await files().write('/root/a', 'a');
    await files().write('/root/b', 'b');
    await files().rename('/root/a', '/root/b');
    expect(await files().readText('/root/b')).toBe('a');
  });

  it('are removed without following links', async () => {
    await sh(box(), 'mkdir -p /root/keep /root/rm; echo x > /root/keep/f; ln -s /root/keep /root/rm/link');
    await files().remove('/root/rm', { recursive: true });
    expect(await files().readText('/root/keep/f')).toBe('x\n');
    expect(await failureOf(files().remove('/root/rm'))).toMatchObject({ code: 'file_not_found' });
    expect((await failureOf(files().remove('/', { recursive: true }))).status).toBeLessThan(503);
    expect(await sh(box(), 'echo still here')).toBe('still here');
  });
});

describe('what is no file', () => {
  it.each(['/root/special/fifo', '/root/special/socket', '/dev/zero', '/dev/ttyS0', '/dev/random'])(
    '%s never hangs a reader or a writer',
    async (path) => {
      await sh(
        box(),
        'mkdir -p /root/special; cd /root/special; [ -p fifo ] || mkfifo fifo; [ -e socket ] || (nc -l -p 1 local:socket >/dev/null 2>&1 & true)',
      );
      const read = await files()
        .read(path, { length: 10, signal: AbortSignal.timeout(20_000) })
        .catch((error: unknown) => error);
      if (!Buffer.isBuffer(read))
        expect(read).toMatchObject({ code: expect.stringMatching(/not_a_file|file_not_found/) });
      const written = await files()
        .write(path, 'x', { signal: AbortSignal.timeout(20_000) })
        .catch((error: unknown) => error);
      if (written instanceof Error) expect(written).not.toMatchObject({ code: 'cancelled' });
      expect(await sh(box(), 'echo well')).toBe('well');
    },
  );

  it('is told by its type', async () => {
    const type = async (path: string) => (await files().stat(path)).type;
    expect(await type('/dev/null')).toBe('char');
    expect(await type('/dev/vda')).toBe('block');
    expect(await type('/root/special/fifo')).toBe('fifo');
  });
});
