/** The `debian:SUITE` base: mmdebstrap, with the mirror, proxies and keys that the host's apt uses. */
import { access, constants, readFile, writeFile } from 'node:fs/promises';
import { userInfo } from 'node:os';
import { EngineError } from '../errors.js';
import { findProgram } from '../vmm/program.js';
import { type DebianSource, debianSources, reachSettings, unknownPackages } from './apt.js';
import type { GuestContext } from './kernel.js';
import { outputOf, RunError, run } from './run.js';

/**
 * What no sandbox needs; licences stay. Removed at the end rather than left out by dpkg: mmdebstrap would pass every package
 * through a filter, which takes longer than all the rest.
 */
const TRIM = [
  'cd "$1/usr/share"',
  'rm -rf man info lintian groff bug',
  'find doc -type f ! -name copyright -delete',
  'find locale -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +',
  'mkdir -p man',
].join(' && ');

/** mmdebstrap's own settings would show the host's proxy to every sandbox; its host name and resolver too. */
const CUSTOMIZE = [
  TRIM,
  'rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap" "$1/etc/resolv.conf" "$1/etc/hostname"',
  'find "$1/etc/apt" -name "*.list" -exec sed -i -E "s#://[^/@ ]*@#://#" {} +',
  'echo forkd > "$1/etc/hostname"',
  'printf "127.0.0.1\\tlocalhost\\n::1\\tlocalhost ip6-localhost\\n" > "$1/etc/hosts"',
  ': > "$1/etc/machine-id"',
  'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/log/* "$1"/var/cache/debconf/*-old',
];

export async function debianInputs(
  suite: string,
  packages: readonly string[],
  context: GuestContext,
): Promise<Record<string, unknown>> {
  return { base: `debian:${suite}`, packages, sources: await sourcesOf(suite, context) };
}

/**
 * Bootstraps the suite with packages into a tar.
 *
 * @param scratch a directory of ours on a disk with room, removed by the caller
 */
export async function makeDebianTar(
  suite: string,
  packages: readonly string[],
  to: string,
  scratch: string,
  context: GuestContext,
): Promise<void> {
  if ((await findProgram('mmdebstrap')) === null)
    throw new EngineError('host_unfit', 'mmdebstrap, which makes Debian images, is not installed', {
      remedy: 'apt-get install mmdebstrap',
    });
  const mode = await bootstrapMode(context);
  const sources = await sourcesOf(suite, context);
  await refuseUnknown(suite, packages, context);
  const settings = await reachSettings(context);
  const args = [
    `--mode=${mode}`,
    '--variant=minbase',
    '--format=tar',
    '--architectures=amd64',
    ...(packages.length > 0 ? [`--include=${packages.join(',')}`] : []),
    ...settings.map((setting) => `--aptopt=${setting}`),
    '--aptopt=APT::Install-Recommends "false";',
    // What is half-made when the host loses power is thrown away anyway.
    '--dpkgopt=force-unsafe-io',
    ...CUSTOMIZE.map((hook) => `--customize-hook=${hook}`),
    suite,
    to,
    ...sources,
  ];
  if (mode === 'unshare') await writeFile(to, '', { mode: 0o600 });
  // As root all of it stays in our directory; in a user namespace others than we must reach it, so it is the system's.
  const env: Record<string, string> = mode === 'root' ? { TMPDIR: scratch } : {};
  try {
    // It unmounts and removes its tree when it is asked to stop.
    const stop = { timeoutMs: 1_200_000, graceMs: 15_000 };
    const [program, ...rest] = [...(await ownMounts(mode, context)), 'mmdebstrap', ...args];
    await run(program!, rest, { ...stop, env, signal: context.signal, onLine: context.onProgress });
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    throw new EngineError('build_failed', describeFailure(suite, error), {
      details: { output: outputOf(error) },
      cause: error,
    });
  }
}

/** A misspelt name is told at once where the host's own lists are of that suite, instead of after the bootstrap. */
async function refuseUnknown(
  suite: string,
  packages: readonly string[],
  context: GuestContext,
): Promise<void> {
  if (!(await debianSources(context.home, context)).some((source) => source.suite === suite)) return;
  const unknown = await unknownPackages(packages, { signal: context.signal });
  if (unknown.length > 0)
    throw new EngineError('build_failed', `Debian ${suite} has no package ${unknown.join(', ')}`, {
      remedy: 'Correct "packages", or run "apt-get update" as root if the package is new.',
    });
}

function describeFailure(suite: string, error: RunError): string {
  const missing = /Unable to locate package (\S+)|Package '?(\S+?)'? has no installation candidate/.exec(
    error.output,
  );
  if (missing) return `Debian ${suite} has no package ${missing[1] ?? missing[2]}`;
  if (error.kind === 'timeout') return error.message;
  const errors = error.output.split('\n').filter((line) => /^E: /.test(line));
  return `mmdebstrap failed for ${suite}: ${errors[0] ?? error.message}`;
}

/** Lines of sources.list: the host's Debian archives, with the suite's name in place of the host's own. Empty: mmdebstrap's default. */
async function sourcesOf(suite: string, context: GuestContext): Promise<string[]> {
  const known = await debianSources(context.home, context);
  const own = known.filter((source) => belongsTo(source, suite));
  if (own.some((source) => source.suite === suite)) return own.map(line);
  const release = /^VERSION_CODENAME=(\S+)/m.exec(
    await readFile('/etc/os-release', 'utf8').catch(() => ''),
  )?.[1];
  const translated = known
    .filter((source) => release !== undefined && belongsTo(source, release))
    .map(({ uri, suite: name }) => ({ uri, suite: suite + name.slice(release!.length) }));
  // The rolling suites have no updates or security of their own.
  const rolling = ['sid', 'unstable', 'testing', 'experimental'].includes(suite);
  return translated.filter((source) => !rolling || source.suite === suite).map(line);
}

function belongsTo(source: DebianSource, release: string): boolean {
  return source.suite === release || source.suite.startsWith(`${release}-`);
}

function line(source: DebianSource): string {
  return `deb ${source.uri} ${source.suite} main`;
}

/**
 * As root mmdebstrap mounts /proc, /sys and devices in its tree. In a mount namespace of its own they end with it, even where it
 * is killed; a container may not make one, and mmdebstrap does without mounts there.
 */
async function ownMounts(mode: 'root' | 'unshare', context: GuestContext): Promise<string[]> {
  if (mode !== 'root') return [];
  const unshare = ['unshare', '--mount', '--propagation', 'private', '--'];
  const [program, ...rest] = [...unshare, 'true'];
  try {
    await run(program!, rest, { signal: context.signal });
    return unshare;
  } catch (error) {
    if (error instanceof RunError) return [];
    throw error;
  }
}

/** root where we are it, else a user namespace, proven to work. */
async function bootstrapMode(context: GuestContext): Promise<'root' | 'unshare'> {
  if (process.getuid?.() === 0) return 'root';
  const user = userInfo().username;
  const refuse = (problem: string, remedy: string, cause?: unknown) =>
    new EngineError('host_unfit', `Debian images cannot be made as ${user}: ${problem}`, {
      remedy: `${remedy}; or build the template as root.`,
      cause,
    });
  for (const program of ['/usr/bin/newuidmap', '/usr/bin/newgidmap']) {
    await access(program, constants.X_OK).catch((cause: unknown) => {
      throw refuse(`${program} is not there`, 'apt-get install uidmap', cause);
    });
  }
  for (const file of ['/etc/subuid', '/etc/subgid']) {
    const text = await readFile(file, 'utf8').catch(() => '');
    if (!text.split('\n').some((entry) => entry.startsWith(`${user}:`)))
      throw refuse(
        `${file} gives ${user} no range`,
        `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ${user}`,
      );
  }
  await run('unshare', ['--user', '--map-root-user', '--mount', 'true'], { signal: context.signal }).catch(
    (error) => {
      if (!(error instanceof RunError)) throw error;
      throw refuse(
        `the kernel refuses user namespaces (${error.message})`,
        'sysctl -w kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)',
        error,
      );
    },
  );
  return 'unshare';
}
