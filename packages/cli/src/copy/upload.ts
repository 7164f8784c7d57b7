/** Copies into a sandbox. */
import { createReadStream, type Stats } from 'node:fs';
import { lstat, readdir, readlink, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { NotFoundError, type Sandbox } from '@forkd/sdk';
import { CliError } from '../failure.js';
import { baseName, joinPath } from './place.js';
import type { Tally } from './tally.js';

/** Copies a file or directory of ours to `target` in the guest; into it when it is a directory. */
export async function upload(
  sandbox: Sandbox,
  source: string,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const info = await ours(source);
  const name = baseName(resolve(source));
  const to =
    name !== undefined && (await isDirectory(sandbox, target, signal)) ? joinPath(target, name) : target;
  await copyTree({ sandbox, tally, signal }, source, info, to);
}

interface Job {
  sandbox: Sandbox;
  tally: Tally;
  signal: AbortSignal;
}

async function copyTree(job: Job, from: string, info: Stats, to: string): Promise<void> {
  job.signal.throwIfAborted();
  const { files } = job.sandbox;
  if (info.isDirectory()) {
    await files.mkdir(to, { mode: info.mode & 0o777, parents: true });
    for (const name of (await readdir(from)).sort()) {
      const path = join(from, name);
      await copyTree(job, path, await lstat(path), joinPath(to, name));
    }
  } else if (info.isFile()) {
    await files.write(to, createReadStream(from), { mode: info.mode & 0o777, signal: job.signal });
    job.tally.add(info.size);
  } else if (info.isSymbolicLink()) {
    const target = await readlink(from);
    const { exit_code, stderr } = await job.sandbox.exec(['ln', '-sfn', '--', target, to], {
      signal: job.signal,
    });
    if (exit_code === 0) job.tally.add(0);
    else job.tally.skip(from, `is a symbolic link, which could not be made in the guest: ${stderr.trim()}`);
  } else {
    // Reading a pipe or device would hang.
    job.tally.skip(from, 'is neither file, directory nor symbolic link');
  }
}

async function ours(path: string): Promise<Stats> {
  try {
    return await stat(path);
  } catch (error) {
    throw new CliError('not_found', `cannot read ${path}: ${(error as Error).message}`, undefined, error);
  }
}

/** Whether a path of the guest is a directory, or a link to one. */
async function isDirectory(sandbox: Sandbox, path: string, signal: AbortSignal): Promise<boolean> {
  try {
    const { type } = await sandbox.files.stat(path, signal);
    if (type !== 'symlink') return type === 'directory';
  } catch (error) {
    if (error instanceof NotFoundError && error.code === 'file_not_found') return false;
    throw error;
  }
  return (await sandbox.exec(['test', '-d', path], { signal })).exit_code === 0;
}
