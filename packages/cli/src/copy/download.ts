/**
 * Copies out of a sandbox. The guest is not trusted: names are checked, a file is written under a new name and renamed, no symbolic
 * link that was there is written through, and those of the guest are made last.
 */
import { randomBytes } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { chmod, lstat, mkdir, rename, rm, stat, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { FileInfo } from '@forkd/api';
import type { Sandbox } from '@forkd/sdk';
import { CliError } from '../failure.js';
import { baseName, joinPath } from './place.js';
import type { Tally } from './tally.js';

/** Copies a file or directory of the guest to `target` here; into it when it is a directory. */
export async function download(
  sandbox: Sandbox,
  source: string,
  target: string,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  let info = await sandbox.files.stat(source, signal);
  // Named by the user: followed. Met on the way: copied as a link.
  if (info.type === 'symlink') info = { ...info, type: await followedType(sandbox, source, signal) };
  const into = await isDirectory(target);
  const name = baseName(source);
  const to = into && name !== undefined ? join(target, name) : target;
  const links: { path: string; target: string }[] = [];
  await copyTree({ sandbox, tally, signal, links }, { ...info, path: source }, to);
  for (const link of links) {
    await rm(link.path, { force: true });
    await symlink(link.target, link.path);
    tally.add(0);
  }
}

interface Job {
  sandbox: Sandbox;
  tally: Tally;
  signal: AbortSignal;
  links: { path: string; target: string }[];
}

async function copyTree(job: Job, from: FileInfo, to: string): Promise<void> {
  job.signal.throwIfAborted();
  if (from.type === 'directory') {
    await makeDirectory(to);
    for (const entry of await job.sandbox.files.list(from.path, job.signal)) {
      const name = checkedName(entry.name, from.path);
      await copyTree(job, { ...entry, path: joinPath(from.path, name) }, join(to, name));
    }
    await chmod(to, from.mode & 0o777);
  } else if (from.type === 'file') {
    await copyFile(job, from, to);
  } else if (from.type === 'symlink' && from.target !== undefined) {
    job.links.push({ path: to, target: from.target });
  } else {
    job.tally.skip(from.path, `is a ${from.type}`);
  }
}

async function copyFile(job: Job, from: FileInfo, to: string): Promise<void> {
  const { info, stream } = await job.sandbox.files.readStream(from.path, { signal: job.signal });
  const partial = join(dirname(to), `.forkd-${randomBytes(6).toString('hex')}`);
  try {
    await pipeline(stream, createWriteStream(partial, { flags: 'wx', mode: info.mode & 0o777 }), {
      signal: job.signal,
    });
    await rename(partial, to);
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
  job.tally.add(info.size);
}

async function makeDirectory(path: string): Promise<void> {
  try {
    // Ours to write into until its content is there.
    await mkdir(path, { mode: 0o700 });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    if (!(await lstat(path)).isDirectory()) {
      throw new CliError(
        'conflict',
        `${path} exists and is not a directory`,
        'remove it, or copy to another place',
        error,
      );
    }
  }
}

function checkedName(name: string, directory: string): string {
  if (name === '' || name === '.' || name === '..' || /[/\0]/.test(name)) {
    throw new CliError(
      'failed',
      `the guest listed the name ${JSON.stringify(name)} in ${directory}`,
      'do not trust this sandbox',
    );
  }
  return name;
}

async function followedType(sandbox: Sandbox, path: string, signal: AbortSignal): Promise<FileInfo['type']> {
  const { exit_code } = await sandbox.exec(['test', '-d', path], { signal });
  return exit_code === 0 ? 'directory' : 'file';
}

async function isDirectory(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory();
  } catch {
    return false;
  }
}
