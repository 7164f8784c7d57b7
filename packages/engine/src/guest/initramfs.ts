/** The guest's initramfs: the agent as init, the modules it loads, the interpreters' drivers. */
import { mkdir, readdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { checkout } from '../checkout.js';
import { EngineError } from '../errors.js';
import { sha256 } from '../hash.js';
import { scratchIn, sealFile, syncPath } from './cache.js';
import { type CpioEntry, writeCpio } from './cpio.js';
import type { GuestKernel } from './kernel.js';
import { throwIfCancelled } from './run.js';

/** Drivers of interpreters in the source tree. */
const INTERPRETERS = join(checkout, 'guest/interpreters');

/** Loaded by node-random.mjs. */
const NODE_ADD_ON = 'node-openssl.node';

export interface InitramfsOptions {
  home: string;
  /** Directory that holds `forkd-agent` and the add-on of Node. */
  nativeDir: string;
  kernel: GuestKernel;
  /** Drivers, copied to /forkd/interpreters. Default: those of this source tree. */
  interpretersDir?: string;
  signal?: AbortSignal | undefined;
}

export interface Initramfs {
  path: string;
  /** SHA-256 of the archive before it is packed: of all that is in it. */
  sha256: string;
  cached: boolean;
}

/**
 * Packs the initramfs, or finds it in the cache by its content.
 *
 * /init is the agent. /modules.list names the modules, a path a line, in the order in which they are loaded.
 *
 * @throws EngineError `host_unfit` where the agent is not built
 */
export async function ensureInitramfs(options: InitramfsOptions): Promise<Initramfs> {
  throwIfCancelled(options.signal, 'packing the initramfs');
  const archive = writeCpio(await listEntries(options));
  const digest = sha256(archive);
  const parent = join(options.home, 'cache/initramfs');
  const path = join(parent, `${digest}.img`);
  const packed = await promisify(gzip)(archive, { level: 1 });
  const there = await readFile(path).catch(() => null);
  if (there?.equals(packed)) return { path, sha256: digest, cached: true };

  await mkdir(parent, { recursive: true, mode: 0o700 });
  await using scratch = await scratchIn(parent);
  const temporary = join(scratch.dir, 'initramfs');
  await writeFile(temporary, packed);
  await sealFile(temporary);
  await rename(temporary, path);
  await syncPath(parent);
  return { path, sha256: digest, cached: false };
}

async function listEntries(options: InitramfsOptions): Promise<CpioEntry[]> {
  const { kernel } = options;
  const agent = await readBuilt(options.nativeDir, 'forkd-agent');
  const directories = ['dev', 'proc', 'sys', 'modules', 'forkd', 'forkd/interpreters'];
  const entries: CpioEntry[] = directories.map((path) => ({ type: 'directory', path }));
  // The kernel opens it for init's first words, before devtmpfs is there.
  entries.push({ type: 'character', path: 'dev/console', major: 5, minor: 1 });
  entries.push({ type: 'file', path: 'init', content: agent, mode: 0o755 });
  for (const module of kernel.modules)
    entries.push({
      type: 'file',
      path: `modules/${module.name}.ko`,
      content: await readFile(module.path),
    });
  const list = kernel.modules.map((module) => `/modules/${module.name}.ko\n`).join('');
  entries.push({ type: 'file', path: 'modules.list', content: Buffer.from(list) });

  const drivers = options.interpretersDir ?? INTERPRETERS;
  for (const driver of (await readdir(drivers, { withFileTypes: true }).catch(() => [])).sort((a, b) =>
    a.name < b.name ? -1 : 1,
  )) {
    if (!driver.isFile() || driver.name.includes('.test.')) continue;
    const content = await readFile(join(drivers, driver.name));
    entries.push({ type: 'file', path: `forkd/interpreters/${driver.name}`, content });
  }
  const addOn = await readBuilt(options.nativeDir, NODE_ADD_ON);
  entries.push({ type: 'file', path: `forkd/interpreters/${NODE_ADD_ON}`, content: addOn });
  return entries;
}

async function readBuilt(nativeDir: string, name: string): Promise<Buffer> {
  const path = join(nativeDir, name);
  return await readFile(path).catch((cause: unknown) => {
    throw new EngineError('host_unfit', `${path}, which the guest needs, is not there`, {
      remedy: 'Build it with "npm run build".',
      cause,
    });
  });
}
