/** The `rootfs` base: a directory or a tar of the host, checked and repacked; no mount, no loop device, no root needed. */
import { createHash } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import type { Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type Pack, pack } from 'tar-stream';
import { EngineError, messageOf } from '../../errors.js';
import { sha256File } from '../../hash.js';
import type { GuestContext } from '../kernel.js';
import { throwIfCancelled } from '../run.js';
import { RootfsCheck, type RootfsLimits, rootfsLimits } from './check.js';
import { directoryEntries, type SourceEntry, tarEntries } from './sources.js';

export interface Rootfs {
  /** Absolute. */
  path: string;
  kind: 'directory' | 'tar';
}

/** @throws EngineError `template_invalid` for what is neither a directory nor a file */
export async function findRootfs(path: string): Promise<Rootfs> {
  const refuse = (problem: string, cause?: unknown) =>
    new EngineError('template_invalid', `rootfs ${path} ${problem}`, {
      remedy: 'Name a directory or a tar; names start at the directory of the template file.',
      cause,
    });
  const info = await stat(path).catch((cause: NodeJS.ErrnoException) => {
    throw refuse(`cannot be read (${cause.code})`, cause);
  });
  if (info.isDirectory()) return { path, kind: 'directory' };
  if (info.isFile()) return { path, kind: 'tar' };
  throw refuse('is neither a directory nor a regular file');
}

/** What its image depends on: every byte, name and owner. */
export async function rootfsInputs(rootfs: Rootfs, context: GuestContext): Promise<Record<string, unknown>> {
  const { path, kind } = rootfs;
  if (kind === 'tar') return { base: 'rootfs', tar: await sha256File(path, context.signal) };
  const hash = createHash('sha256');
  await repack(rootfs, hash, context, rootfsLimits);
  return { base: 'rootfs', directory: hash.digest('hex') };
}

/**
 * Writes a root file system as a tar of our own.
 *
 * @throws EngineError `build_failed` for what must not be in it, or cannot be read
 */
export async function makeRootfsTar(
  rootfs: Rootfs,
  to: string,
  context: GuestContext,
  limits: RootfsLimits = rootfsLimits,
): Promise<void> {
  await repack(rootfs, createWriteStream(to, { mode: 0o600 }), context, limits);
}

async function repack(
  rootfs: Rootfs,
  to: Writable,
  context: GuestContext,
  limits: RootfsLimits,
): Promise<void> {
  const { path, kind } = rootfs;
  const check = new RootfsCheck(path, limits);
  const archive = pack();
  const written = pipeline(archive, to, ...(context.signal ? [{ signal: context.signal }] : []));
  written.catch(() => {}); // Awaited below; it may break first.
  try {
    for await (const entry of kind === 'tar' ? tarEntries(path) : directoryEntries(path)) {
      throwIfCancelled(context.signal, `reading ${path}`);
      await copyEntry(entry, check, archive);
    }
    check.end();
    archive.finalize();
    await written;
  } catch (error) {
    archive.destroy();
    // Where the disk is full, that is what ended the reading.
    const cause: unknown = await written.then(
      () => error,
      (reason: NodeJS.ErrnoException) => (reason.code === 'ENOSPC' ? reason : error),
    );
    throwIfCancelled(context.signal, `reading ${path}`);
    if (cause instanceof EngineError || cause !== error) throw cause;
    throw check.refuse(messageOf(error), error);
  }
  if (check.dropped > 0) context.onProgress?.(`left out: ${check.dropped} devices and sockets`);
}

async function copyEntry(entry: SourceEntry, check: RootfsCheck, archive: Pack): Promise<void> {
  const checked = check.take(entry);
  if (checked === null || checked.path === '') return;
  const { path, type, target } = checked;
  const size = type === 'file' ? entry.size : 0;
  const { mode, uid, gid, mtime } = entry;
  const header = { name: path, type, size, mode, uid, gid, mtime, ...(target && { linkname: target }) };
  if (size === 0 || entry.body === null) archive.entry(header, '');
  else await feed(entry.body, archive, header);
}

/** Like `pipeline`, for the sinks of tar-stream, which are not of Node's making. */
async function feed(
  from: AsyncIterable<Buffer>,
  archive: Pack,
  header: Parameters<Pack['entry']>[0],
): Promise<void> {
  let sink: ReturnType<Pack['entry']> | undefined;
  const done = new Promise<void>((resolve, reject) => {
    sink = archive.entry(header, (error) => (error ? reject(error) : resolve()));
  });
  done.catch(() => {}); // Awaited below; it may break first.
  for await (const chunk of from) {
    if (sink?.write(chunk)) continue;
    await Promise.race([done, new Promise((resolve) => sink?.once('drain', () => resolve(undefined)))]);
  }
  sink?.end(undefined);
  await done;
}
