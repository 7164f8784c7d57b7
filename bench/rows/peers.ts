import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { repeat, type Series, timed } from '../statistics.js';

const run = promisify(execFile);
/** Debian's, which has Debian's numpy: another one may come first in PATH. */
const PYTHON = '/usr/bin/python3';
const CODE = 'import numpy; print(float(numpy.random.rand(100000).sum()))';

/** Debian packages of what we are compared with, and of what they run. */
const PACKAGES = ['runsc', 'bubblewrap', 'python3', 'python3-numpy'];

/** Installs the peers from Debian. Root only. */
export async function installPeers(): Promise<void> {
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
  const options = ['install', '-y', '--no-install-recommends', '-o', 'DPkg::Lock::Timeout=300'];
  await run('apt-get', [...options, ...PACKAGES], { env, timeout: 300_000, maxBuffer: 64 * 1024 * 1024 });
}

/** Whether a peer can be run here. */
export async function havePeer(program: 'runsc' | 'bwrap'): Promise<boolean> {
  return await run(program, ['--version'], { timeout: 10_000 }).then(
    () => true,
    () => false,
  );
}

/** gVisor runs the numpy sum cold, with the host's python3. */
export async function gvisorNumpy(n: number): Promise<Series> {
  const root = await mkdtemp(join(tmpdir(), 'forkd-bench-runsc-'));
  try {
    const args = ['--root', root, '--network=none', '--ignore-cgroups', 'do', PYTHON, '-c', CODE];
    return await repeat(n, 1, () => timed(() => run('runsc', args, { timeout: 60_000 })));
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}

/** bubblewrap runs the same: namespaces, the host's kernel. */
export async function bubblewrapNumpy(n: number): Promise<Series> {
  const args = [
    '--ro-bind',
    '/',
    '/',
    '--dev',
    '/dev',
    '--proc',
    '/proc',
    '--unshare-all',
    PYTHON,
    '-c',
    CODE,
  ];
  return await repeat(n, 2, () => timed(() => run('bwrap', args, { timeout: 60_000 })));
}
