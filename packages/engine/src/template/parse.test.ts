import { describe, expect, it } from 'vitest';
import { parseTemplate } from './parse.js';
import { parseDuration, parseSize } from './units.js';

const MiB = 1024 * 1024;
const problem = (yaml: string) => {
  try {
    parseTemplate(yaml, 'mine');
  } catch (error) {
    expect(error).toMatchObject({ code: 'template_invalid' });
    return (error as Error).message.replace('template mine is not valid: ', '');
  }
  throw new Error('was taken');
};

describe('a template', () => {
  it('has defaults for all but its base', () => {
    expect(parseTemplate('base: busybox', 'mine')).toMatchObject({
      name: 'mine',
      packages: [],
      user: 'root',
      memoryBytes: 512 * MiB,
      vcpus: 1,
      diskBytes: 2048 * MiB,
      ready: null,
    });
  });

  it('takes shorthands', () => {
    const spec = parseTemplate(
      `base: debian:bookworm
packages: [python3, curl, python3]
setup: [echo hi, {run: make, timeout: 5m}]
env: {PORT: 8080, DEBUG: true, NAME: x}
user: agent
interpreters: [python]
warm_up:
  - run: serve
    background: true
ready: test -f /ready
prime: ["1+1"]
memory: 1 GiB
`,
      'mine',
    );
    expect(spec.packages).toEqual(['curl', 'python3']);
    expect(spec.setup).toEqual([
      { run: 'echo hi', timeoutMs: 1_200_000, user: 'root' },
      { run: 'make', timeoutMs: 300_000, user: 'root' },
    ]);
    expect(spec.env).toEqual({ PORT: '8080', DEBUG: 'true', NAME: 'x' });
    expect(spec.warmUp[0]).toMatchObject({ background: true, user: 'agent' });
    expect(spec.interpreters[0]?.command).toEqual(['python3', '/run/forkd/interpreters/python.py']);
    expect(spec.ready).toEqual({ run: 'test -f /ready', timeoutMs: 60_000, user: 'agent' });
    expect(spec.prime).toEqual([{ interpreter: 'python', code: '1+1' }]);
    expect(spec.memoryBytes).toBe(1024 * MiB);
  });

  it('takes packages of languages, and what they need of the base', () => {
    const spec = parseTemplate(
      `base: debian:bookworm
packages: [curl]
pip: [six, "attrs>=23,<24", "black[d] ==24.1.0", 'tomli; python_version < "3.11"', six]
npm: [ms, "@types/node@^20", semver@>=7 <8]
`,
      'mine',
    );
    expect(spec.packages).toEqual(['curl', 'nodejs', 'python3']);
    expect(spec.pip).toEqual(['attrs>=23,<24', 'black[d] ==24.1.0', 'six', 'tomli; python_version < "3.11"']);
    expect(spec.npm).toEqual(['@types/node@^20', 'ms', 'semver@>=7 <8']);
  });

  it('takes a root file system in place of a base', () => {
    expect(parseTemplate('rootfs: ./root.tar\npip: [six]', 'mine')).toMatchObject({
      base: 'rootfs',
      rootfs: './root.tar',
      packages: [],
      pip: ['six'],
    });
  });

  it('takes a field without a value as absent', () => {
    expect(parseTemplate('base: busybox\nsetup:\n', 'mine').setup).toEqual([]);
  });

  it.each([
    ['base: [', /^line 1: /],
    ['', 'a template is a list of fields, such as "base: debian:bookworm"'],
    ['- a', /^line 1: a template is a list of fields/],
    ['name: x', 'line 1: field "base" is missing ("rootfs" can take its place)'],
    ['base: busybox\nbase: busybox', 'line 2: Map keys must be unique'],
    ['base: busybox\nsetpu: [a]', 'setpu, line 2: unknown field "setpu"'],
    ['base: fedora', /^base, line 1: "fedora" must be "busybox", or "debian:"/],
    ['base: debian:../x', /^base, line 1: /],
    ['base: busybox\nsetup:\n  - echo a\n  - rnu: b\n', /setup\[1\].rnu, line 4: unknown field "rnu"/],
    ['base: busybox\nsetup:\n  - [a]\n', /^setup\[0\], line 3: \["a"\] must be object/],
    ['base: busybox\nmemory: 512', 'memory, line 2: 512 must be string'],
    ['base: busybox\nmemory: lots', /^memory, line 2: "lots" must be a number with a unit/],
    ['base: busybox\nmemory: 1M', /^memory, line 2: "1M" must be at least 96M/],
    ['base: busybox\nvcpus: 0', 'vcpus, line 2: 0 must be >= 1'],
    ['base: busybox\nenv: {A-B: x}', 'env.A-B, line 2: "A-B" cannot be the name of a variable'],
    ['base: busybox\nfiles: [{path: /a}]', 'files[0], line 2: "/a" needs one of "from" and "content"'],
    ['base: busybox\nfiles: [{path: a, content: x}]', 'files[0].path, line 2: "a" must be an absolute path'],
    ['base: busybox\nfiles: [{path: /../a, content: x}]', /must name a file, without/],
    [
      'base: busybox\nfiles: [{path: /a, content: x, mode: 644}]',
      'files[0].mode, line 2: 644 must be string',
    ],
    ['base: busybox\ninterpreters: [ruby]', /^interpreters\[0\], line 2: "ruby" is not known/],
    ['base: busybox\ninterpreters: [python, python]', /two interpreters named "python"/],
    ['base: busybox\nprime: ["1"]', 'prime[0], line 2: needs an interpreter in "interpreters"'],
    ['base: busybox\npackages: [curl]', /^packages, line 2: base "busybox" takes no packages/],
    ['base: busybox\npip: [six]', /^pip, line 2: base "busybox" has no Python; use "debian:bookworm"/],
    ['base: busybox\nnpm: [ms]', /^npm, line 2: base "busybox" has no Node.js/],
    ['base: busybox\nrootfs: x', /^rootfs, line 2: takes the place of "base": only one of both/],
    ['rootfs: x\npackages: [curl]', /^packages, line 2: a "rootfs" takes no packages/],
    ...[
      '-r list.txt',
      '--index-url=http://a',
      './dir',
      'a @ http://b/c.whl',
      'http://a/b.whl',
      'a b',
      '',
    ].map((item): [string, RegExp] => [
      `base: debian:bookworm\npip: [${JSON.stringify(item)}]`,
      /^pip\[0\], line 2: ".*" must be a requirement of a package of an index/,
    ]),
    ...[
      '--registry=http://a',
      'a@http://b',
      'user/repository',
      'a@npm:b',
      'a@file:../b',
      '../a',
      '/a',
      '',
    ].map((item): [string, RegExp] => [
      `base: debian:bookworm\nnpm: [${JSON.stringify(item)}]`,
      /^npm\[0\], line 2: ".*" must be a package of a registry/,
    ]),
    [
      'base: debian:bookworm\npackages: ["--help"]',
      /^packages\[0\], line 2: "--help" must be names of Debian/,
    ],
    ['base: busybox\nready: {run: x, timeout: never}', /^ready.timeout, line 2: "never" must be seconds/],
  ])('is refused by field and line: %j', (yaml, message) => {
    const text = problem(yaml);
    if (typeof message === 'string') expect(text).toBe(message);
    else expect(text).toMatch(message);
  });
});

it('sizes are powers of 1024', () => {
  expect([parseSize('1K'), parseSize('512 MiB'), parseSize('1.5G'), parseSize('2TB')]).toEqual([
    1024,
    512 * MiB,
    1536 * MiB,
    2 * 1024 ** 4,
  ]);
  expect([parseSize('512'), parseSize('-1M'), parseSize('1X')]).toEqual([Number.NaN, Number.NaN, Number.NaN]);
});

it('durations are seconds unless said, and fit a timer', () => {
  expect([parseDuration(1.5), parseDuration('500ms'), parseDuration('2m'), parseDuration('999h')]).toEqual([
    1500, 500, 120_000, 86_400_000,
  ]);
});
