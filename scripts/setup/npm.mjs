/** The npm part of the set-up: `npm ci`, once per lock file. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { root } from '../lib/paths.mjs';
import { Failure, run } from '../lib/run.mjs';

// Inside node_modules, so that who removes the one removes the other.
const stamp = join(root, 'node_modules', '.forkd-setup');

/** Whether node_modules is what the lock file says. */
export function npmIsDone() {
  try {
    return readFileSync(stamp, 'utf8') === key() && existsSync(join(root, 'node_modules/.bin/forkd'));
  } catch {
    return false;
  }
}

/** Installs the npm packages of the lock file. The caller holds the lock. */
export async function installNpm() {
  rmSync(stamp, { force: true });
  // The npm that runs us, if one does: there may be another on PATH. No package needs its install scripts.
  const own = process.env.npm_execpath;
  const args = ['ci', '--include=dev', '--ignore-scripts', '--no-audit', '--no-fund'];
  const [command, prefix] =
    own && basename(own).startsWith('npm-cli') ? [process.execPath, [own]] : ['npm', []];
  console.log(`> npm ${args.join(' ')}`);
  const code = await run(command, [...prefix, ...args], { cwd: root });
  if (code !== 0) {
    throw new Failure(
      `npm ci failed (exit ${code})`,
      'check the network, proxy and registry settings of npm; then run the same command again',
    );
  }
  writeFileSync(stamp, key());
}

function key() {
  const hash = createHash('sha256').update(process.versions.modules);
  return hash.update(readFileSync(join(root, 'package-lock.json'))).digest('hex');
}
