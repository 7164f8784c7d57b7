import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ensureNpmSet } from './npm.js';
import { ensurePipSet } from './pip.js';
import { type PythonTarget, wheelPlatforms } from './target.js';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'forkd-packages-'));
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(dir, { recursive: true, force: true });
});

/** None that this host has. */
const python39: PythonTarget = {
  version: '3.9',
  program: '/opt/python3',
  sitePackages: '/usr/lib/python3.9/site-packages',
  libc: { kind: 'glibc', version: '2.31' },
};

/** Makes a wheel: a module, and a program where it says so. */
function wheel(file: string, metadata: string[] = [], program = false): void {
  const [name, version] = file.split('-') as [string, string];
  const info = `${name}-${version}.dist-info`;
  const files = {
    [`${name}.py`]: `VERSION = "${version}"\ndef main(): print(VERSION)\n`,
    [`${info}/METADATA`]: [
      'Metadata-Version: 2.1',
      `Name: ${name}`,
      `Version: ${version}`,
      ...metadata,
      '',
    ].join('\n'),
    [`${info}/WHEEL`]: 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    ...(program && { [`${info}/entry_points.txt`]: `[console_scripts]\n${name} = ${name}:main\n` }),
    [`${info}/RECORD`]: '',
  };
  const code = `import json, sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as z:
    for name, text in json.loads(sys.argv[2]).items(): z.writestr(name, text)`;
  execFileSync('python3', ['-c', code, join(dir, 'index', file), JSON.stringify(files)]);
}

const listing = (tar: string) => execFileSync('tar', ['-tvf', tar], { encoding: 'utf8' });
const content = (tar: string, name: string) => execFileSync('tar', ['-xOf', tar, name], { encoding: 'utf8' });

describe('pip', () => {
  beforeEach(async () => {
    await mkdir(join(dir, 'index'));
    vi.stubEnv('PIP_NO_INDEX', '1');
    vi.stubEnv('PIP_FIND_LINKS', join(dir, 'index'));
  });

  it('resolves for the Python and the C library of the image, and installs what the lock says', async () => {
    const needs = [
      'Requires-Dist: old; python_version < "3.10"',
      'Requires-Dist: new; python_version >= "3.10"',
    ];
    wheel('app-1.0-py3-none-any.whl', needs, true);
    wheel('old-1.0-cp39-cp39-manylinux_2_28_x86_64.whl');
    wheel('old-2.0-cp39-cp39-manylinux_2_35_x86_64.whl');
    wheel('old-3.0-cp311-cp311-manylinux_2_17_x86_64.whl');
    const made = await ensurePipSet(['app'], python39, { home: dir });
    expect(made.lock).toMatchObject([
      { name: 'app', version: '1.0', hash: expect.stringMatching(/^sha256:[0-9a-f]{64}$/) },
      { name: 'old', version: '1.0' },
    ]);
    expect(listing(made.path)).toMatch(/^-rw-r--r-- \S+ .* \.\/usr\/lib\/python3.9\/site-packages\/old.py$/m);
    expect(content(made.path, './usr/local/bin/app')).toMatch(/^#!\/opt\/python3\n/);

    // The second time nothing is asked for, not even whether there are newer ones.
    await rm(join(dir, 'index'), { recursive: true });
    expect(await ensurePipSet(['app'], python39, { home: dir })).toMatchObject({
      cached: true,
      lock: made.lock,
    });
  }, 60_000);

  it('refuses what has no wheel, in its own words', async () => {
    await writeFile(join(dir, 'index/source-1.0.tar.gz'), '');
    await expect(ensurePipSet(['source'], python39, { home: dir })).rejects.toMatchObject({
      code: 'build_failed',
      message: expect.stringMatching(
        /^pip could not fetch wheels for Python 3.9, glibc 2.31: No matching distribution found for source/,
      ),
    });
  }, 60_000);

  it('takes wheels for this C library and older ones', () => {
    const glibc = wheelPlatforms({ kind: 'glibc', version: '2.19' });
    expect(glibc.slice(0, 4)).toEqual(
      ['manylinux_2_19', 'manylinux_2_18', 'manylinux_2_17', 'manylinux2014'].map((name) => `${name}_x86_64`),
    );
    expect(wheelPlatforms({ kind: 'musl', version: '1.2' })).toEqual([
      'musllinux_1_2_x86_64',
      'musllinux_1_1_x86_64',
    ]);
  });
});

describe('npm', () => {
  it('says which package there is not, and that it was npm', async () => {
    vi.stubEnv('npm_config_offline', 'true');
    vi.stubEnv('npm_config_cache', join(dir, 'npm-cache'));
    await expect(ensureNpmSet(['no-such-package'], { home: dir })).rejects.toMatchObject({
      code: 'build_failed',
      message: expect.stringMatching(/^npm could not fetch the packages: .*no-such-package/),
    });
  }, 60_000);
});
