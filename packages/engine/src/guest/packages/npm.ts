/**
 * `npm:` of a template. The host's npm fetches packages, through whatever registry and proxy its .npmrc says. No script of a package
 * runs, so that nothing of them is executed on the host; what a package would build at its installation is therefore not built.
 */
import { mkdir, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { EngineError } from '../../errors.js';
import { outputOf, RunError, run } from '../run.js';
import { ensureSet, type LockedPackage, type PackageSet, type SetOptions } from './set.js';

/** Changes whenever sets of the same packages would come out otherwise. */
const FORMAT = 1;
const FETCH_MS = 30 * 60_000;

/**
 * Provides a list of packages with all that they need, in /node_modules: the one place where `require` and `import` find them from
 * every directory. Their programs are linked into /usr/local/bin.
 *
 * @param packages `name` or `name@range`
 * @throws EngineError `host_unfit` without npm, `build_failed` with npm's own words
 */
export async function ensureNpmSet(packages: readonly string[], options: SetOptions): Promise<PackageSet> {
  return await ensureSet(
    {
      manager: 'npm',
      inputs: { format: FORMAT, packages },
      make: async (root, scratch) => {
        const project = join(scratch, 'project');
        await mkdir(project);
        await fetchPackages(packages, project, options);
        const lock = await lockOf(project);
        const modules = join(root, 'node_modules');
        await rename(join(project, 'node_modules'), modules);
        // It names the registry.
        await rm(join(modules, '.package-lock.json'), { force: true });
        await linkPrograms(root);
        return lock;
      },
    },
    options,
  );
}

async function fetchPackages(
  packages: readonly string[],
  project: string,
  options: SetOptions,
): Promise<void> {
  await writeFile(join(project, 'package.json'), '{"private":true}\n');
  const args = [
    ...['install', '--global=false', '--save', '--ignore-scripts', '--omit=dev', '--no-audit', '--no-fund'],
    ...[
      '--no-update-notifier',
      '--package-lock=true',
      '--install-strategy=hoisted',
      '--no-progress',
      '--loglevel=error',
    ],
    ...['--os=linux', '--cpu=x64', '--libc=glibc', '--', ...packages],
  ];
  try {
    await run('npm', args, {
      cwd: project,
      // npm that belongs to the Node that runs this, and started by it.
      env: { PATH: `${dirname(process.execPath)}:${process.env.PATH ?? ''}` },
      signal: options.signal,
      onLine: options.onProgress,
      timeoutMs: FETCH_MS,
    });
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    if (error.kind === 'missing')
      throw new EngineError('host_unfit', 'npm, which fetches the packages of "npm", is not installed', {
        remedy: 'apt-get install npm',
        cause: error,
      });
    const said = error.output
      .split('\n')
      .map((line) => /^npm (?:error|ERR!) (.*)$/.exec(line)?.[1] ?? '')
      .filter((line) => line !== '' && !line.startsWith('code ') && !line.startsWith('A complete log'));
    throw new EngineError('build_failed', `npm could not fetch the packages: ${said[0] ?? error.message}`, {
      details: { output: outputOf(error) },
      cause: error,
    });
  }
}

interface NpmLock {
  packages: Record<string, { version?: string; integrity?: string; name?: string }>;
}

/** What was installed, as npm notes it; without addresses, which may be private or hold a password. */
async function lockOf(project: string): Promise<LockedPackage[]> {
  const text = await readFile(join(project, 'node_modules/.package-lock.json'), 'utf8');
  const { packages } = JSON.parse(text) as NpmLock;
  const locked = new Map<string, LockedPackage>();
  for (const [path, { version, integrity, name: alias }] of Object.entries(packages)) {
    if (version === undefined) continue;
    const name = alias ?? path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length);
    if (integrity === undefined)
      throw new EngineError('build_failed', `npm has no hash of ${name}@${version}: it is from no registry`, {
        remedy: 'Use packages that have all that they need in a registry.',
      });
    locked.set(`${name}@${version}`, { name, version, hash: integrity });
  }
  return [...locked.values()];
}

async function linkPrograms(root: string): Promise<void> {
  const programs = await readdir(join(root, 'node_modules/.bin')).catch(() => []);
  if (programs.length === 0) return;
  await mkdir(join(root, 'usr/local/bin'), { recursive: true });
  await Promise.all(
    programs.map((name) => symlink(`/node_modules/.bin/${name}`, join(root, 'usr/local/bin', name))),
  );
}
