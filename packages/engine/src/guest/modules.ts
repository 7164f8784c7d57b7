/** Kernel modules that the guest's init loads: which, and in what order. */
import { readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { run } from './run.js';

/** What the guest cannot do without, as a module or built into the kernel. */
const REQUIRED = ['virtio_mmio', 'virtio_blk', 'virtio_console', 'squashfs', 'overlay', 'ext4'];
/** Loaded where the kernel has it: what ext4's checksums use, and the agent's way in on engines without a serial port. */
const OPTIONAL = ['crc32c_generic', 'vmw_vsock_virtio_transport'];

export interface KernelModule {
  name: string;
  content: Buffer;
}

/**
 * Picks modules from an unpacked kernel package, in the order in which they can be loaded: each after those it depends on.
 *
 * The package has no modules.dep (depmod makes it on the target), so dependencies are read from the modules themselves.
 *
 * @param tree directory of one kernel version: `.../lib/modules/VERSION`
 * @param more names of further modules, which must be there as well
 * @throws RangeError that names a module which is needed and not there
 */
export async function collectModules(
  tree: string,
  signal?: AbortSignal,
  more: readonly string[] = [],
): Promise<KernelModule[]> {
  const files = new Map<string, string>();
  for (const entry of await readdir(join(tree, 'kernel'), { recursive: true, withFileTypes: true })) {
    if (entry.isFile() && /\.ko(\.(xz|gz|zst))?$/.test(entry.name))
      files.set(moduleName(entry.name), join(entry.parentPath, entry.name));
  }
  const builtin = new Set(
    (await readFile(join(tree, 'modules.builtin'), 'utf8')).split('\n').map((line) => moduleName(line)),
  );
  const order: KernelModule[] = [];
  const seen = new Set<string>();
  const visit = async (name: string, required: boolean): Promise<void> => {
    if (seen.has(name) || builtin.has(name)) return;
    seen.add(name);
    const file = files.get(name);
    if (!file) {
      if (required) throw new RangeError(`the kernel package has no module ${name}, nor is it built in`);
      return;
    }
    const content = await readModule(file, signal);
    for (const needed of modInfo(content, 'depends')[0]?.split(',').filter(Boolean) ?? [])
      await visit(needed.replaceAll('-', '_'), true);
    order.push({ name, content });
  };
  for (const name of [...REQUIRED, ...more]) await visit(name, true);
  for (const name of OPTIONAL) await visit(name, false);
  return order;
}

function moduleName(path: string): string {
  return basename(path)
    .replace(/\.ko(\.\w+)?$/, '')
    .replaceAll('-', '_');
}

async function readModule(path: string, signal?: AbortSignal): Promise<Buffer> {
  if (path.endsWith('.xz')) return run('xz', ['-dc', path], { collect: true, signal });
  if (path.endsWith('.zst')) return run('zstd', ['-dcq', path], { collect: true, signal });
  const content = await readFile(path);
  return path.endsWith('.gz') ? gunzipSync(content) : content;
}

/** Values of a key in a module's .modinfo section: `key=value` strings, each between NULs. */
export function modInfo(module: Buffer, key: string): string[] {
  const values: string[] = [];
  const needle = Buffer.from(`\0${key}=`);
  for (let at = module.indexOf(needle); at >= 0; at = module.indexOf(needle, at + 1)) {
    const start = at + needle.length;
    const end = module.indexOf(0, start);
    if (end >= start) values.push(module.toString('latin1', start, end));
  }
  return values;
}
