/** The `busybox` base: one static program of the host and links to it. Made in a second, for tests and for small sandboxes. */
import { readFile, writeFile } from 'node:fs/promises';
import { EngineError } from '../errors.js';
import { sha256 } from '../hash.js';
import type { GuestContext } from './kernel.js';
import { run } from './run.js';
import { type TarEntry, writeTar } from './tar.js';

const PROGRAM = '/bin/busybox';
const PT_INTERP = 3;

const passwd = `root:x:0:0:root:/root:/bin/sh
user:x:1000:1000:user:/home/user:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
`;
const group = `root:x:0:
user:x:1000:
nogroup:x:65534:
`;
const hosts = `127.0.0.1\tlocalhost
::1\tlocalhost
`;

export async function busyboxInputs(): Promise<Record<string, unknown>> {
  return { base: 'busybox', program: sha256(await readProgram()) };
}

/** Writes the tree as a tar: everything root's, without being root. */
export async function makeBusyboxTar(to: string, context: GuestContext): Promise<void> {
  const program = await readProgram();
  const list = await run(PROGRAM, ['--list-full'], { collect: true, signal: context.signal });
  const applets = list
    .toString()
    .split('\n')
    .filter((path) => /^(usr\/)?s?bin\/\S+$/.test(path) && path !== 'bin/busybox');
  const entries: TarEntry[] = [
    ...['bin', 'sbin', 'usr', 'usr/bin', 'usr/sbin', 'dev', 'etc', 'home', 'mnt', 'proc', 'run', 'sys'].map(
      (path): TarEntry => ({ type: 'directory', path }),
    ),
    ...['var', 'var/log', 'usr/local', 'usr/local/bin'].map(
      (path): TarEntry => ({ type: 'directory', path }),
    ),
    { type: 'directory', path: 'root', mode: 0o700 },
    { type: 'directory', path: 'home/user', uid: 1000, gid: 1000 },
    { type: 'directory', path: 'tmp', mode: 0o1777 },
    { type: 'directory', path: 'var/tmp', mode: 0o1777 },
    { type: 'symlink', path: 'var/run', target: '/run' },
    { type: 'file', path: 'etc/passwd', content: Buffer.from(passwd) },
    { type: 'file', path: 'etc/group', content: Buffer.from(group) },
    { type: 'file', path: 'etc/hosts', content: Buffer.from(hosts) },
    { type: 'file', path: 'etc/hostname', content: Buffer.from('forkd\n') },
    { type: 'file', path: 'etc/machine-id', content: Buffer.alloc(0) },
    { type: 'file', path: 'bin/busybox', content: program, mode: 0o755 },
    ...applets.map((path): TarEntry => ({ type: 'symlink', path, target: PROGRAM })),
  ];
  await writeFile(to, writeTar(entries), { mode: 0o600 });
}

async function readProgram(): Promise<Buffer> {
  const remedy = 'apt-get install busybox-static';
  const program = await readFile(PROGRAM).catch((cause: unknown) => {
    throw new EngineError('host_unfit', `${PROGRAM}, which base "busybox" is made of, is not there`, {
      remedy,
      cause,
    });
  });
  if (!isStatic(program))
    throw new EngineError('host_unfit', `${PROGRAM} is not a static program: it would not run alone`, {
      remedy,
    });
  return program;
}

/** A static ELF program asks for no dynamic loader. */
function isStatic(program: Buffer): boolean {
  if (program.length < 64 || program.readUInt32BE(0) !== 0x7f454c46) return false;
  const table = Number(program.readBigUInt64LE(0x20));
  const size = program.readUInt16LE(0x36);
  const count = program.readUInt16LE(0x38);
  for (let i = 0; i < count; i++) {
    const at = table + i * size;
    if (at + 4 > program.length || program.readUInt32LE(at) === PT_INTERP) return false;
  }
  return true;
}
