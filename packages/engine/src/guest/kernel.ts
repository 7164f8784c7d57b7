/** The guest's kernel: taken out of Debian's cloud kernel package, which is never installed. */
import { mkdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError, messageOf } from '../errors.js';
import { hostFault } from '../host/fault.js';
import {
  type AptContext,
  type AptLists,
  downloadPackage,
  fetchOwnLists,
  hostLists,
  hostListsChangedAt,
  showPackage,
} from './apt.js';
import {
  matchesStamp,
  readJson,
  type Stamp,
  scratchIn,
  sealFile,
  stampOf,
  syncPath,
  writeJson,
} from './cache.js';
import { collectModules } from './modules.js';
import { outputOf, RunError, run } from './run.js';
import { extractVmlinux } from './vmlinux.js';

/** Debian's package that always depends on the newest kernel made for virtual machines. */
const META_PACKAGE = 'linux-image-cloud-amd64';
const RECORD = 'kernel.json';
const CURRENT = 'current.json';
const FORMAT = 1;

export interface GuestKernel {
  /** As `uname -r` in the guest says. */
  version: string;
  /** bzImage. */
  vmlinuz: string;
  /** SHA-256 of the bzImage. */
  sha256: string;
  /** The ELF inside it; null where it is packed in a way that is not known. */
  vmlinux: string | null;
  vmlinuxSha256: string | null;
  /** In the order in which they are loaded. */
  modules: { name: string; path: string; sha256: string }[];
  /** Nothing was fetched. */
  cached: boolean;
}

export interface GuestContext {
  /** State directory. */
  home: string;
  signal?: AbortSignal | undefined;
  /** Lines of the programs that are run, for people. */
  onProgress?: ((text: string) => void) | undefined;
}

export interface KernelOptions extends GuestContext {
  /** Modules besides those that every guest of ours loads. One state directory keeps one such list. */
  moreModules?: readonly string[];
}

interface KernelRecord {
  format: number;
  version: string;
  packageVersion: string;
  vmlinuz: Stamp;
  vmlinux: Stamp | null;
  modules: ({ name: string } & Stamp)[];
  moreModules?: readonly string[];
}

/**
 * Provides the guest's kernel: the version that the host's package lists hold now, from the cache where it is there and whole.
 *
 * A host whose lists are gone keeps the kernel that it has.
 *
 * @throws EngineError `host_unfit` where no kernel package can be found or fetched, `cancelled`
 */
export async function ensureKernel(context: KernelOptions): Promise<GuestKernel> {
  const parent = join(context.home, 'cache/kernel');
  await mkdir(parent, { recursive: true, mode: 0o700 });
  const listsAt = await hostListsChangedAt();
  const current = await readJson<{ directory: string; listsAt: number }>(join(parent, CURRENT));
  const more = context.moreModules ?? [];
  const held = current && (await openKernel(join(parent, current.directory), more));
  if (held && (listsAt === 0 || listsAt === current.listsAt)) return held;

  const apt: AptContext = { signal: context.signal, onLine: context.onProgress };
  try {
    const { lists, candidate } = await findCandidate(context.home, apt, listsAt !== 0);
    const directory = `${candidate.version}_${candidate.packageVersion.replace(/[^\w.+~-]/g, '_')}`;
    const dir = join(parent, directory);
    const kernel =
      (await openKernel(dir, more)) ?? (await fetchKernel(context, apt, lists, candidate, parent, directory));
    await writeJson(join(parent, CURRENT), { directory, listsAt });
    return kernel;
  } catch (error) {
    if (error instanceof EngineError) throw error;
    // An update that cannot be fetched is no reason to stop: what was good yesterday is good.
    if (held) {
      context.onProgress?.(
        `a newer kernel could not be had (${messageOf(error)}); staying with ${held.version}`,
      );
      return held;
    }
    const fault = hostFault(error, "the guest's kernel could not be fetched", parent);
    if (fault) throw fault;
    throw new EngineError('host_unfit', `cannot provide the guest's kernel: ${messageOf(error)}`, {
      remedy:
        'Check that "apt-get download linux-image-cloud-amd64" works on this host: sources, network and proxy.',
      details: { output: outputOf(error) },
      cause: error,
    });
  }
}

interface Candidate {
  package: string;
  version: string;
  packageVersion: string;
}

async function findCandidate(
  home: string,
  apt: AptContext,
  hostHasLists: boolean,
): Promise<{ lists: AptLists; candidate: Candidate }> {
  const known = hostHasLists ? await lookUp(hostLists, apt) : null;
  if (known) return { lists: hostLists, candidate: known };
  const lists = await fetchOwnLists(join(home, 'cache/debs'), apt);
  const candidate = await lookUp(lists, apt);
  if (candidate) return { lists, candidate };
  throw new EngineError('host_unfit', `the host's package sources have no ${META_PACKAGE}`, {
    remedy: 'Add Debian\'s main archive to the sources of apt and run "apt-get update" as root.',
  });
}

async function lookUp(lists: AptLists, apt: AptContext): Promise<Candidate | null> {
  const depends = (await showPackage(lists, META_PACKAGE, apt))?.get('Depends') ?? '';
  const match = /\blinux-image-(\d[\w.+~-]*)(?: \(= ([^)]+)\))?/.exec(depends);
  if (!match) return null;
  const name = `linux-image-${match[1]}`;
  const packageVersion = match[2] ?? (await showPackage(lists, name, apt))?.get('Version');
  return packageVersion ? { package: name, version: match[1]!, packageVersion } : null;
}

async function fetchKernel(
  context: KernelOptions,
  apt: AptContext,
  lists: AptLists,
  candidate: Candidate,
  parent: string,
  directory: string,
): Promise<GuestKernel> {
  await using scratch = await scratchIn(parent);
  const deb = await downloadPackage(
    lists,
    candidate.package,
    candidate.packageVersion,
    scratch.dir,
    apt,
  ).catch(async (error) => {
    // The host's lists may be older than the archive, which drops what it has replaced.
    if (lists !== hostLists || !(error instanceof RunError)) throw error;
    const own = await fetchOwnLists(join(context.home, 'cache/debs'), apt);
    return downloadPackage(own, candidate.package, candidate.packageVersion, scratch.dir, apt);
  });
  context.onProgress?.(`unpacking ${candidate.package}`);
  const tree = join(scratch.dir, 'tree');
  const made = join(scratch.dir, 'made');
  await run('dpkg-deb', ['-x', deb, tree], { signal: context.signal, timeoutMs: 120_000 });
  await mkdir(join(made, 'modules'), { recursive: true, mode: 0o700 });

  const image = await readFile(join(tree, 'boot', `vmlinuz-${candidate.version}`));
  const elf = extractVmlinux(image);
  const write = async (path: string, content: Buffer) => {
    await writeFile(join(made, path), content);
    await sealFile(join(made, path));
    return stampOf(join(made, path));
  };
  const more = context.moreModules ?? [];
  const record: KernelRecord = {
    format: FORMAT,
    version: candidate.version,
    packageVersion: candidate.packageVersion,
    vmlinuz: await write('vmlinuz', image),
    vmlinux: elf && (await write('vmlinux', elf)),
    modules: [],
    moreModules: more,
  };
  const modules = await modulesTree(tree, candidate.version);
  for (const module of await collectModules(modules, context.signal, more))
    record.modules.push({ name: module.name, ...(await write(`modules/${module.name}.ko`, module.content)) });
  await writeFile(join(made, RECORD), JSON.stringify(record, null, 2), { mode: 0o444 });
  await syncPath(join(made, RECORD));

  const dir = join(parent, directory);
  // What stands there, if anything, was found damaged; or another build has just made the same.
  const theirs = await openKernel(dir, more);
  if (theirs) return theirs;
  await rm(dir, { recursive: true, force: true });
  await rename(made, dir);
  await syncPath(parent);
  const kernel = await openKernel(dir, more);
  if (!kernel) throw new EngineError('engine_error', `the kernel written to ${dir} does not read back`);
  return { ...kernel, cached: false };
}

/** Debian moved modules from /lib to /usr/lib. */
async function modulesTree(tree: string, version: string): Promise<string> {
  for (const base of ['usr/lib/modules', 'lib/modules']) {
    const dir = join(tree, base, version);
    if (await isDirectory(join(dir, 'kernel'))) return dir;
  }
  throw new RangeError(`the kernel package has no modules of ${version}`);
}

async function isDirectory(path: string): Promise<boolean> {
  return (await stat(path).catch(() => null))?.isDirectory() ?? false;
}

/** A kernel of the cache; null when it is not there, has other modules, or any of its files is not what was written. */
async function openKernel(dir: string, more: readonly string[]): Promise<GuestKernel | null> {
  const record = await readJson<KernelRecord>(join(dir, RECORD));
  if (record?.format !== FORMAT || (record.moreModules ?? []).join() !== more.join()) return null;
  const vmlinuz = join(dir, 'vmlinuz');
  const vmlinux = record.vmlinux && join(dir, 'vmlinux');
  const modules = record.modules.map(({ name, ...stamp }) => ({
    name,
    path: join(dir, 'modules', `${name}.ko`),
    stamp,
  }));
  const checks = [
    matchesStamp(vmlinuz, record.vmlinuz),
    ...(vmlinux && record.vmlinux ? [matchesStamp(vmlinux, record.vmlinux)] : []),
    ...modules.map(({ path, stamp }) => matchesStamp(path, stamp)),
  ];
  if (!(await Promise.all(checks)).every(Boolean)) return null;
  return {
    version: record.version,
    vmlinuz,
    sha256: record.vmlinuz.sha256,
    vmlinux,
    vmlinuxSha256: record.vmlinux?.sha256 ?? null,
    modules: modules.map(({ name, path, stamp }) => ({ name, path, sha256: stamp.sha256 })),
    cached: true,
  };
}
