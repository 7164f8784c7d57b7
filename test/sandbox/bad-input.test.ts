import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Children, client, failureOf, fork, sh } from './support.js';

let children: Children;
beforeAll(async () => {
  children = await fork();
  await sh(
    children.box,
    `cd /tmp; echo text > plain; printf '#!/no/such/interpreter\\n' > shebang; printf 'garbage' > garbage
     printf '\\177ELF' > elf; chmod +x shebang garbage elf; ln -s loop loop; mkdir dir`,
  );
});
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
});

describe('a command that cannot be', () => {
  const cases: [string, string[], Record<string, unknown>, string, RegExp][] = [
    ['without a program', [''], {}, 'invalid_argument', /args/],
    ['not there', ['no-such-program'], {}, 'command_not_found', /no-such-program/],
    ['not there, by path', ['/bin/no-such'], {}, 'command_not_found', /\/bin\/no-such/],
    [
      'through a file',
      ['/tmp/plain/x'],
      {},
      'command_not_found|not_a_directory|guest_invalid',
      /\/tmp\/plain\/x/,
    ],
    ['not executable', ['/tmp/plain'], {}, 'command_not_executable', /\/tmp\/plain/],
    ['a directory', ['/tmp/dir'], {}, 'command_not_executable', /\/tmp\/dir/],
    [
      'without its interpreter',
      ['/tmp/shebang'],
      {},
      'command_not_found|command_not_executable',
      /\/tmp\/shebang/,
    ],
    ['half a program', ['/tmp/elf'], {}, 'command_not_executable', /\/tmp\/elf/],
    ['a loop of links', ['/tmp/loop'], {}, 'guest_invalid', /\/tmp\/loop/],
    ['with NUL in an argument', ['echo', 'a\0b'], {}, 'invalid_argument', /args/],
    [
      'in a directory that is a file',
      ['true'],
      { cwd: '/tmp/plain' },
      'guest_invalid|not_a_directory',
      /\/tmp\/plain/,
    ],
    [
      'in a directory that is not there',
      ['true'],
      { cwd: '/none' },
      'guest_invalid|file_not_found',
      /\/none/,
    ],
    ['by a user that is not there', ['true'], { user: 'nobody-here' }, 'guest_invalid', /nobody-here/],
    [
      'with an argument that is too long',
      ['echo', 'x'.repeat(131_072)],
      {},
      'argument_too_large',
      /128 KiB|131072|131071|argument/,
    ],
    ['with too much environment', ['true'], { env: big(40) }, 'argument_too_large', /env|arguments/],
    ['with a variable without name', ['true'], { env: { '': 'x' } }, 'invalid_argument', /env/],
    ['with a negative time', ['true'], { timeoutSecs: -1 }, 'invalid_argument', /timeout_secs.*-1/],
    ['with endless time', ['true'], { timeoutSecs: 1e12 }, 'invalid_argument', /timeout_secs/],
  ];
  it.each(cases)('%s', async (_, command, options, codes, message) => {
    const error = await failureOf(children.box.exec(command, options));
    expect(codes.split('|')).toContain(error.code);
    expect(error.message).toMatch(message);
    expect(error.remedy).not.toMatch(/^$|\{/);
    expect(error.status).toBeLessThan(500);
    const streamed = await failureOf(children.box.run(command, options));
    expect(streamed.code).toBe(error.code);
  });

  it('leaves the agent well', async () => {
    expect(await sh(children.box, 'echo well')).toBe('well');
    const left = (await children.box.processes()).filter(({ running }) => running);
    expect(left.filter(({ role }) => role !== 'interpreter')).toEqual([]);
  });
});

/** Variables of 100 KiB each. */
function big(n: number): Record<string, string> {
  return Object.fromEntries(Array.from({ length: n }, (_, i) => [`V${i}`, 'x'.repeat(100 * 1024)]));
}

describe('a command that is unusual and right', () => {
  it('has arguments as given: empty, with newlines, quotes, dashes, of any language', async () => {
    const args = ['', ' ', 'a\nb', '\'"\\$`*', '-n', '--', 'ü𝄞', '\t'];
    const result = await children.box.exec(['sh', '-c', 'for a; do printf "[%s]" "$a"; done', 'sh', ...args]);
    expect(result.stdout).toBe(args.map((arg) => `[${arg}]`).join(''));
  });

  it('has an argument of nearly 128 KiB, and many of them', async () => {
    const long = 'x'.repeat(131_071);
    expect((await children.box.exec(['sh', '-c', 'echo ${#1}', 'sh', long])).stdout).toBe('131071\n');
    const many = Array.from({ length: 5000 }, (_, i) => `${i}`);
    expect((await children.box.exec(['sh', '-c', 'echo $#', 'sh', ...many])).stdout).toBe('5000\n');
  });

  it('has an environment of 200 KiB', async () => {
    const env = { A: 'x'.repeat(100_000), B: 'y'.repeat(100_000) };
    const result = await children.box.exec({ shell: 'echo ${#A} ${#B}' }, { env });
    expect(result).toMatchObject({ exit_code: 0, stdout: '100000 100000\n' });
  });

  it('has a PATH when the environment names none', async () => {
    const result = await children.box.exec([
      'env',
      '-i',
      '/bin/sh',
      '-c',
      'echo "${PATH:-unset}"; ls / | wc -l',
    ]);
    expect(result.exit_code).toBe(0);
    expect(await sh(children.box, 'echo $PATH')).toContain('/bin');
    expect(await sh(children.box, 'echo $HOME; pwd')).toBe('/root\n/root');
  });

  it('runs as another user, by name and by number', async () => {
    const whoami = { shell: 'id -un 2>/dev/null || id -u; echo $HOME; id -G' };
    expect((await children.box.exec(whoami, { user: 'user' })).stdout).toBe('user\n/home/user\n1000\n');
    expect((await children.box.exec({ shell: 'id -u' }, { user: '4242' })).stdout).toBe('4242\n');
    const denied = await children.box.exec({ shell: 'echo x > /etc/passwd' }, { user: 'user' });
    expect(denied.exit_code).not.toBe(0);
  });

  it('goes on when its directory vanishes', async () => {
    const result = await children.box.exec(
      { shell: 'mkdir /tmp/v && cd /tmp/v && rmdir /tmp/v && echo fine && /bin/true' },
      { cwd: '/tmp' },
    );
    expect(result).toMatchObject({ stdout: 'fine\n', exit_code: 0 });
  });
});

describe('a sandbox that is not there', () => {
  it.each([
    ['sb-0000000000000000', 404],
    ['..', 404],
    ['../../v1/snapshots', 404],
    ['a b\n', 404],
    ['%2e%2e', 404],
  ])('%j', async (id, status) => {
    const box = client().sandbox(id);
    for (const call of [
      () => box.exec(['true']),
      () => box.ping(),
      () => box.files.list('/'),
      () => box.kill(),
    ]) {
      expect(await failureOf(call())).toMatchObject({ status });
    }
  });
});
