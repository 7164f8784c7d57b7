/** What the host's package manager is asked: as the user, with the host's sources, proxies and keys, and nothing of the host changed. */
import { mkdir, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { sha256 } from '../hash.js';
import { readJson, writeJson } from './cache.js';
import { RunError, run } from './run.js';

export interface AptContext {
  signal?: AbortSignal | undefined;
  onLine?: ((line: string) => void) | undefined;
}

/** Package lists to work with: the host's, or our own where the host has none or stale ones. */
export interface AptLists {
  readonly options: readonly string[];
}

export const hostLists: AptLists = { options: [] };

/**
 * Fetches package lists into a directory of ours, from the host's sources; no root needed.
 *
 * A source that fails does not matter as long as what is looked for is found: apt says so in the lines.
 */
export async function fetchOwnLists(dir: string, context: AptContext): Promise<AptLists> {
  await mkdir(join(dir, 'lists/partial'), { recursive: true, mode: 0o700 });
  await mkdir(join(dir, 'archives/partial'), { recursive: true, mode: 0o700 });
  const options = [
    ...['-o', `Dir::State::Lists=${join(dir, 'lists')}`, '-o', `Dir::Cache=${dir}`],
    ...['-o', 'Dir::State::Status=/var/lib/dpkg/status', '-o', 'Debug::NoLocking=1'],
    ...unsandboxed(),
  ];
  await run('apt-get', ['-q', 'update', ...options], { ...context, timeoutMs: 300_000 }).catch((error) => {
    // Its exit code may be that of one source among many.
    if (!(error instanceof RunError) || error.kind !== 'failed') throw error;
  });
  return { options };
}

/** When the host's package lists last changed, ms since 1970; 0 when there are none. */
export async function hostListsChangedAt(): Promise<number> {
  const dir = '/var/lib/apt/lists';
  const names = await readdir(dir).catch(() => []);
  if (!names.some((name) => name.includes('_Packages'))) return 0;
  return (await stat(dir)).mtimeMs;
}

/** Fields of a package's candidate version; null when it is not known. */
export async function showPackage(
  lists: AptLists,
  name: string,
  context: AptContext,
): Promise<Map<string, string> | null> {
  const args = ['show', '--no-all-versions', ...lists.options, name];
  try {
    const text = (await run('apt-cache', args, { ...context, collect: true })).toString();
    const fields = new Map<string, string>();
    for (const line of text.split('\n\n')[0]!.split('\n')) {
      const match = /^([A-Za-z0-9-]+): (.*)$/.exec(line);
      if (match) fields.set(match[1]!, match[2]!);
    }
    return fields.size > 0 ? fields : null;
  } catch (error) {
    if (error instanceof RunError && error.kind === 'failed') return null;
    throw error;
  }
}

/**
 * Packages of a list that the host's package lists do not know. Empty where the host has no lists: nothing is known then.
 */
export async function unknownPackages(names: readonly string[], context: AptContext): Promise<string[]> {
  if (names.length === 0 || (await hostListsChangedAt()) === 0) return [];
  const unknown: string[] = [];
  const onLine = (line: string) => {
    const name = /Unable to locate package (\S+)/.exec(line)?.[1];
    if (name) unknown.push(name);
  };
  await run('apt-cache', ['-q=0', 'show', '--no-all-versions', ...names], { ...context, onLine }).catch(
    (error) => {
      if (!(error instanceof RunError)) throw error;
    },
  );
  return [...new Set(unknown)];
}

/** Downloads a package into `dir`; apt checks it against the archive's signature. Returns the file's path. */
export async function downloadPackage(
  lists: AptLists,
  name: string,
  version: string,
  dir: string,
  context: AptContext,
): Promise<string> {
  const args = ['-q', 'download', ...lists.options, ...unsandboxed(), `${name}=${version}`];
  await run('apt-get', args, { ...context, cwd: dir, timeoutMs: 600_000 });
  const file = (await readdir(dir)).find((entry) => entry.startsWith(`${name}_`) && entry.endsWith('.deb'));
  if (!file) throw new RunError('failed', ['apt-get', ...args], `left no ${name} package`, '');
  return join(dir, file);
}

/** Root's apt hands downloads to a user of its own, who cannot write where we do. For others it is without effect. */
function unsandboxed(): string[] {
  return process.getuid?.() === 0 ? ['-o', 'APT::Sandbox::User=root'] : [];
}

/** Settings of the host's apt by which packages are reached (proxies, certificates, retries): `Name "value";` each. */
export async function reachSettings(context: AptContext): Promise<string[]> {
  const dump = await run('apt-config', ['dump'], { ...context, collect: true });
  return dump
    .toString()
    .split('\n')
    .filter((line) =>
      /^Acquire::(https?|ftp|Retries|Check-Valid-Until|ForceIPv[46])\b.* "[^"]+";$/.test(line),
    );
}

/** A line of a Debian archive that the host uses. */
export interface DebianSource {
  uri: string;
  /** `bookworm`, `bookworm-updates`, `bookworm-security`. */
  suite: string;
}

/**
 * The Debian archives among the host's sources; third parties' are left out. Empty where the host is not Debian.
 *
 * apt takes a second to tell, so the answer is kept until its configuration or its lists change.
 */
export async function debianSources(home: string, context: AptContext): Promise<DebianSource[]> {
  const key = await configurationKey();
  const path = join(home, 'cache/apt-sources.json');
  const kept = await readJson<{ key: string; sources: DebianSource[] }>(path);
  if (kept?.key === key) return kept.sources;
  const sources = await askSources(context);
  await writeJson(path, { key, sources });
  return sources;
}

/** Changes with apt's configuration, sources and lists: names, sizes and times of their files. */
async function configurationKey(): Promise<string> {
  const dirs = ['/etc/apt', '/etc/apt/sources.list.d', '/etc/apt/apt.conf.d'];
  const paths = (
    await Promise.all(dirs.map(async (dir) => (await readdir(dir).catch(() => [])).map((n) => join(dir, n))))
  ).flat();
  const facts = await Promise.all(
    ['/var/lib/apt/lists', ...paths].map(async (path) => {
      const info = await stat(path).catch(() => null);
      return [path, info?.size, info?.mtimeMs];
    }),
  );
  return sha256(JSON.stringify(facts));
}

async function askSources(context: AptContext): Promise<DebianSource[]> {
  const args = ['indextargets', '--format', '$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)|$(BASE_URI)'];
  const text = await run('apt-get', [...args, 'Created-By: Packages'], { ...context, collect: true }).catch(
    () => Buffer.alloc(0),
  );
  const found = new Map<string, DebianSource>();
  for (const line of text.toString().split('\n')) {
    const [origin, label, component, uri, base] = line.split('|');
    // Without package lists apt knows no origin: the path tells then.
    const debian =
      origin === 'Debian' || (origin?.startsWith('$') && /\/debian(-security)?\/?$/.test(uri ?? ''));
    if (!debian || component !== 'main' || !uri || !base || label === 'Debian Backports') continue;
    const suite = /\/dists\/(.+?)\/?$/.exec(base)?.[1];
    if (suite && !suite.includes('backports')) found.set(`${uri} ${suite}`, { uri, suite });
  }
  return [...found.values()];
}
