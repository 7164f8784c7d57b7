/** The entries of a root file system: of a directory, or of a tar. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants, createReadStream } from 'node:fs';
import { lstat, open, readdir, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { extract } from 'tar-stream';
import { EngineError } from '../../errors.js';
import { hostEnvironment } from '../run.js';
import type { RawEntry } from './check.js';

/** An entry with what an archive keeps of it. */
export interface SourceEntry extends RawEntry {
  /** Permission bits. */
  mode: number;
  uid: number;
  gid: number;
  mtime: Date;
  /** Content of a file, to be read before the next entry is asked for, or not at all. */
  body: AsyncIterable<Buffer> | null;
}

const PERMISSIONS = 0o7777;

/**
 * The tree under a directory, in the order of names; file systems that are mounted in it too. What belongs to the user who runs this,
 * unless that is root, is root's in the image: he could not have made it otherwise.
 */
export async function* directoryEntries(root: string): AsyncGenerator<SourceEntry> {
  const uid = process.getuid?.() ?? 0;
  const gid = process.getgid?.() ?? 0;
  const linked = new Map<string, string>();
  const visit = async function* (name: string): AsyncGenerator<SourceEntry> {
    const path = join(root, name);
    const info = await lstat(path);
    const head = {
      name,
      size: 0,
      mode: info.mode & PERMISSIONS,
      uid: info.uid === uid ? 0 : info.uid,
      gid: info.gid === gid ? 0 : info.gid,
      mtime: new Date(Math.floor(info.mtimeMs / 1000) * 1000),
      body: null,
    };
    const inode = `${info.dev}:${info.ino}`;
    const first = linked.get(inode);
    if (first !== undefined) {
      yield { ...head, type: 'link', target: first };
      return;
    }
    if (info.nlink > 1 && !info.isDirectory()) linked.set(inode, name);
    if (info.isSymbolicLink()) yield { ...head, type: 'symlink', target: await readlink(path) };
    else if (info.isFile()) {
      const { size } = info;
      yield { ...head, type: 'file', size, body: size === 0 ? null : contentOf(path, size) };
    } else if (info.isDirectory()) {
      yield { ...head, type: 'directory' };
      for (const child of (await readdir(path)).sort())
        yield* visit(name === '.' ? child : `${name}/${child}`);
    } else {
      const type = info.isFIFO() ? 'fifo' : info.isSocket() ? 'socket' : 'character-device';
      yield { ...head, type };
    }
  };
  yield* visit('.');
}

/** The first bytes of a file; what has taken its place since is not followed. */
async function* contentOf(path: string, bytes: number): AsyncGenerator<Buffer> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  yield* file.createReadStream({ end: bytes - 1, highWaterMark: 1 << 18, autoClose: false });
}

/** The entries of a tar, which may be packed by gzip, xz, zstd or bzip2. */
export async function* tarEntries(path: string): AsyncGenerator<SourceEntry> {
  const parser = extract();
  const packer = await packerOf(path);
  const input = createReadStream(path, { highWaterMark: 1 << 20 });
  const child = packer && packer !== 'gzip' ? startUnpacker(packer) : null;
  const stages = child
    ? Promise.all([
        pipeline(input, child.stdin!).catch(unlessClosed),
        pipeline(child.stdout!, parser),
        ended(child, packer!),
      ])
    : pipeline(packer === 'gzip' ? [input, createGunzip(), parser] : [input, parser]);
  // A source that breaks must end the reading below, which waits for the parser.
  stages.catch((error: Error) => parser.destroy(error));
  try {
    for await (const entry of parser) {
      const { header } = entry;
      yield {
        name: header.name,
        type: header.type ?? 'unknown',
        size: header.size ?? 0,
        target: header.linkname,
        mode: (header.mode ?? 0) & PERMISSIONS,
        uid: header.uid ?? 0,
        gid: header.gid ?? 0,
        mtime: header.mtime ?? new Date(0),
        body: entry as AsyncIterable<Buffer>,
      };
      entry.resume();
    }
    await stages;
  } finally {
    input.destroy();
    child?.kill('SIGKILL');
  }
}

const magics: readonly [string, string][] = [
  ['1f8b', 'gzip'],
  ['fd377a585a00', 'xz'],
  ['28b52ffd', 'zstd'],
  ['425a68', 'bzip2'],
];

async function packerOf(path: string): Promise<string | undefined> {
  await using file = await open(path, 'r');
  const { buffer } = await file.read(Buffer.alloc(6), 0, 6, 0);
  return magics.find(([magic]) => buffer.toString('hex').startsWith(magic))?.[1];
}

function startUnpacker(program: string): ChildProcess {
  const child = spawn(program, ['-dc'], { env: hostEnvironment(), stdio: ['pipe', 'pipe', 'ignore'] });
  child.stdin?.on('error', () => {}); // Told by its end.
  return child;
}

async function ended(child: ChildProcess, program: string): Promise<void> {
  try {
    const [code] = (await once(child, 'close')) as [number | null];
    if (code !== 0) throw new Error(`${program} exited with ${code}`);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    throw new EngineError('host_unfit', `${program}, which unpacks the root file system, is not installed`, {
      remedy: `apt-get install ${program === 'xz' ? 'xz-utils' : program}`,
      cause: error,
    });
  }
}

/** An unpacker that ends before its input does says why by its exit code. */
function unlessClosed(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE' && error.code !== 'ERR_STREAM_PREMATURE_CLOSE') throw error;
}
