/** Checks that need no daemon: what it takes to start one. */
import { accessSync, constants, existsSync, mkdirSync, statfsSync } from 'node:fs';
import { join } from 'node:path';
import { homeFiles } from '@forkd/api';
import { checkout, daemonProgram, homeDirectory } from '../daemon.js';
import { bytes } from '../format.js';
import type { Check } from './remote.js';

/** Longest path of a unix socket. A sandbox's sockets are reached by relative names, so only ours counts. */
const maxSocketPath = 107;
const diskWanted = 2 * 1024 ** 3;

/** Checks of this process, the build and the state directory. */
export async function localChecks(): Promise<Check[]> {
  return [nodeCheck(), buildCheck(), ...homeChecks()];
}

function nodeCheck(): Check {
  // The entry has refused older ones.
  return { name: 'Node.js', state: 'pass', found: process.version };
}

function buildCheck(): Check {
  const wanted = [
    daemonProgram,
    join(checkout, 'build/native/forkd-agent'),
    join(checkout, 'build/native/forkd-shim'),
  ];
  const missing = wanted.filter((file) => !existsSync(file));
  if (missing.length === 0) return { name: 'build', state: 'pass', found: `complete, in ${checkout}` };
  const remedy = `cd '${checkout}' && npm run setup && npm run build`;
  return { name: 'build', state: 'fail', found: `${missing.join(', ')} missing`, remedy };
}

function homeChecks(): Check[] {
  const name = 'state directory';
  let home: string;
  try {
    home = homeDirectory();
    mkdirSync(home, { recursive: true, mode: 0o700 });
    accessSync(home, constants.R_OK | constants.W_OK | constants.X_OK);
  } catch (error) {
    const remedy = 'set FORKD_HOME to a directory that this user may write to';
    return [{ name, state: 'fail', found: (error as Error).message, remedy }];
  }
  const socket = join(home, homeFiles.socket);
  if (Buffer.byteLength(socket) > maxSocketPath) {
    const found = `${home} is so long that its sockets cannot be named`;
    return [{ name, state: 'fail', found, remedy: 'set FORKD_HOME to a shorter path' }];
  }
  return [{ name, state: 'pass', found: home }, spaceCheck(home)];
}

function spaceCheck(home: string): Check {
  const { bavail, bsize } = statfsSync(home);
  const free = bavail * bsize;
  const found = `${bytes(free)} free for ${home}`;
  if (free >= diskWanted) return { name: 'disk space', state: 'pass', found };
  const remedy = 'free space there, or set FORKD_HOME to a directory on a larger disk';
  return { name: 'disk space', state: 'warn', found, remedy };
}
