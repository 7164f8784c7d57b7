/** Which sources an output was built from, by name, size and time of change. */
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { root } from '../lib/paths.mjs';

const skipped = new Set(['dist', 'node_modules']);
const stampFile = (name) => join(root, 'build', 'stamps', name);

/**
 * @param {readonly string[]} paths files and directories, relative to the checkout
 * @returns {string} changes when any of their files does
 */
export function digestOf(paths) {
  const hash = createHash('sha256').update(process.versions.node);
  for (const path of paths) add(hash, path);
  return hash.digest('hex');
}

/** Whether the output called `name` was last built from sources of this digest. */
export function isCurrent(name, digest) {
  try {
    return readFileSync(stampFile(name), 'utf8') === digest;
  } catch {
    return false;
  }
}

/** Records that the output called `name` is now built from sources of this digest. */
export function markCurrent(name, digest) {
  mkdirSync(dirname(stampFile(name)), { recursive: true });
  writeFileSync(stampFile(name), digest);
}

function add(hash, path) {
  const stat = statSync(join(root, path), { throwIfNoEntry: false });
  if (stat === undefined) return;
  if (!stat.isDirectory()) {
    hash.update(`${path}\0${stat.size}\0${stat.mtimeMs}\n`);
    return;
  }
  for (const name of readdirSync(join(root, path)).sort()) {
    if (!skipped.has(name)) add(hash, `${path}/${name}`);
  }
}
