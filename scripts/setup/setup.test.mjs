import { spawn } from 'node:child_process';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

const scripts = dirname(dirname(fileURLToPath(import.meta.url)));
let root;

beforeEach(() => {
  // A checkout of its own, in a path with a space, whose programs only write down how they were called.
  root = mkdtempSync(join(tmpdir(), 'fk setup-'));
  chmodSync(root, 0o777);
  cpSync(scripts, join(root, 'checkout', 'scripts'), { recursive: true });
  writeFileSync(join(root, 'checkout', 'package-lock.json'), '{}');
  mkdirSync(join(root, 'bin'));
  fake(
    'dpkg-query',
    'for n; do case $n in -*|*Status*) ;; squashfs-tools|gcc) ;; *) echo "installed $n";; esac; done; exit 1',
  );
  fake('apt-get', 'echo "apt-get $*" >> "$ROOT/calls"; case "$*" in *update) exit 100;; esac');
  fake(
    'npm',
    'echo "npm $*" >> "$ROOT/calls"; sleep 0.2; mkdir -p node_modules/.bin; : > node_modules/.bin/forkd',
  );
  fake('sudo', 'exit 1');
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function fake(name, script) {
  writeFileSync(join(root, 'bin', name), `#!/bin/sh\nROOT=$(dirname "$(dirname "$0")")\n${script}\n`, {
    mode: 0o755,
  });
}

const calls = () =>
  existsSync(join(root, 'calls')) ? readFileSync(join(root, 'calls'), 'utf8').trim().split('\n') : [];

function setup(args = [], { prefix = [], node = [] } = {}) {
  const command = [
    ...prefix,
    process.execPath,
    ...node,
    join(root, 'checkout', 'scripts', 'setup.mjs'),
    ...args,
  ];
  const env = { PATH: `${join(root, 'bin')}:/usr/bin:/bin:/usr/sbin`, HOME: root };
  const child = spawn(command[0], command.slice(1), { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  child.stdout.on('data', (chunk) => {
    output += chunk;
  });
  child.stderr.on('data', (chunk) => {
    output += chunk;
  });
  return new Promise((done) => child.on('close', (code) => done({ code, output })));
}

const asRoot = describe.runIf(process.getuid() === 0);

asRoot('set-up', () => {
  it('--plan prints every privileged action and does none', async () => {
    const { code, output } = await setup(['--plan']);
    expect(code).toBe(0);
    expect(output).toContain('apt-get -o DPkg::Lock::Timeout=300 update');
    expect(output).toContain('install -y --no-install-recommends squashfs-tools gcc\n');
    expect(calls()).toEqual([]);
    expect(existsSync(join(root, 'checkout', 'node_modules'))).toBe(false);
  });

  it('installs what is missing, though a source of packages fails', async () => {
    const { code, output } = await setup();
    expect(output).toContain('apt-get update failed (exit 100); going on');
    expect(code).toBe(0);
    expect(calls()).toEqual([
      'apt-get -o DPkg::Lock::Timeout=300 update',
      'apt-get install -s -y --no-install-recommends squashfs-tools gcc',
      'apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends squashfs-tools gcc',
      'npm ci --include=dev --ignore-scripts --no-audit --no-fund',
    ]);
  });

  it('fails when our packages do not resolve', async () => {
    fake(
      'apt-get',
      'echo "apt-get $*" >> "$ROOT/calls"; echo "E: Unable to locate package gcc" >&2; exit 100',
    );
    const { code, output } = await setup();
    expect(code).toBe(1);
    expect(output).toContain('error: apt cannot resolve squashfs-tools gcc: E: Unable to locate package gcc');
    expect(calls().some((call) => call.startsWith('npm'))).toBe(false);
  });

  it('does nothing the second time', async () => {
    fake('dpkg-query', 'for n; do case $n in -*|*Status*) ;; *) echo "installed $n";; esac; done');
    await setup();
    const started = performance.now();
    expect(await setup()).toEqual({ code: 0, output: '' });
    expect(performance.now() - started).toBeLessThan(1000);
    expect(calls()).toHaveLength(1);
  });

  it('runs npm once when two run at once, and again when the lock file has changed', async () => {
    fake('dpkg-query', 'for n; do case $n in -*|*Status*) ;; *) echo "installed $n";; esac; done');
    const codes = (await Promise.all([setup(), setup()])).map(({ code }) => code);
    expect(codes).toEqual([0, 0]);
    expect(calls()).toHaveLength(1);
    writeFileSync(join(root, 'checkout', 'package-lock.json'), '{"changed": true}');
    expect((await setup()).code).toBe(0);
    expect(calls()).toHaveLength(2);
  });

  it('gives who is not root the one line to run', async () => {
    const nobody = ['setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups'];
    const { code, output } = await setup([], { prefix: nobody });
    expect(code).toBe(1);
    expect(output).toMatch(
      /hint: run once: sudo sh -c '.*install -y --no-install-recommends squashfs-tools gcc'\n$/,
    );
    expect(calls()).toEqual([]);
  });

  it('tells an old Node so, before anything else', async () => {
    const old = 'data:text/javascript,Object.defineProperty(process,"versions",{value:{node:"18.20.4"}})';
    const { code, output } = await setup([], { node: ['--import', old] });
    expect(code).toBe(1);
    expect(output).toMatch(/^Node 20\.18\.1 or newer needed, found 18\.20\.4\n/);
    expect(calls()).toEqual([]);
  });
});
