/** What the host must have before anything is changed on it: system, memory, disk. */
import { existsSync, readFileSync, statfsSync } from 'node:fs';
import { dirname } from 'node:path';
import { root } from '../lib/paths.mjs';
import { Failure } from '../lib/run.mjs';

const MiB = 1024 * 1024;
/** A 512 MiB guest that is mostly file-backed, a compiler and a daemon. */
const memoryNeeded = 1024 * MiB;
const diskNeeded = { packages: 900 * MiB, checkout: 400 * MiB, state: 1500 * MiB };

/**
 * @param {{installing: boolean, npm: boolean}} work what will be installed
 * @throws Failure when the host cannot carry it
 */
export function checkHost(work) {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new Failure(
      `forkd runs on Linux on x86-64, this is ${process.platform} on ${process.arch}`,
      'use a Linux machine, virtual machine or container',
    );
  }
  const memory = memoryBytes();
  if (memory < memoryNeeded) {
    throw new Failure(
      `${mib(memory)} MiB of memory can be used here, ${mib(memoryNeeded)} MiB are needed`,
      'raise the memory of this machine or container',
    );
  }
  const needs = new Map();
  const need = (path, bytes) => {
    const at = existing(path);
    needs.set(at, (needs.get(at) ?? 0) + bytes);
  };
  if (work.installing) need('/usr', diskNeeded.packages);
  if (work.npm) need(root, diskNeeded.checkout);
  const state = stateDirectory();
  if (state && !existsSync(state)) need(state, diskNeeded.state);
  for (const [path, bytes] of byDevice(needs)) {
    const { bavail, bsize } = statfsSync(path);
    if (bavail * bsize < bytes) {
      throw new Failure(
        `${mib(bavail * bsize)} MiB are free on the file system of ${path}, ${mib(bytes)} MiB are needed`,
        'free space there, or set FORKD_HOME to a directory on a larger disk',
      );
    }
  }
}

/** The smaller of what the machine has and what the control group allows. */
function memoryBytes() {
  const total = Number(/^MemTotal:\s+(\d+) kB/m.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1] ?? 0) * 1024;
  const limits = ['/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes'].map((file) => {
    try {
      return Number(readFileSync(file, 'utf8')) || Number.POSITIVE_INFINITY;
    } catch {
      return Number.POSITIVE_INFINITY;
    }
  });
  return Math.min(total, ...limits);
}

/** Needs on one file system add up. */
function byDevice(needs) {
  const sums = new Map();
  for (const [path, bytes] of needs) {
    const { blocks, bsize, type, bfree } = statfsSync(path);
    const key = [blocks, bsize, type, bfree].join();
    const [first, sum] = sums.get(key) ?? [path, 0];
    sums.set(key, [first, sum + bytes]);
  }
  return sums.values();
}

function existing(path) {
  let at = path;
  while (!existsSync(at)) at = dirname(at);
  return at;
}

/** As in packages/api/src/home.ts, which is not built yet when this runs. */
function stateDirectory() {
  const { FORKD_HOME, XDG_STATE_HOME, HOME } = process.env;
  return (
    FORKD_HOME ||
    (XDG_STATE_HOME?.startsWith('/') ? `${XDG_STATE_HOME}/forkd` : HOME && `${HOME}/.local/state/forkd`)
  );
}

function mib(bytes) {
  return Math.floor(bytes / MiB);
}
