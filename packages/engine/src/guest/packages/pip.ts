/**
 * `pip:` of a template. The host's pip fetches wheels, through whatever indexes, proxies and certificates it is set up for, and
 * resolves them for the Python of the image, not its own. They are installed on the host too, without network: a wheel only has to be
 * unpacked, so that no code of a package runs here.
 */
import { access, constants, mkdir, readdir, rename, writeFile } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { EngineError } from '../../errors.js';
import { sha256File } from '../../hash.js';
import { outputOf, RunError, run } from '../run.js';
import { ensureSet, type LockedPackage, type PackageSet, type SetOptions } from './set.js';
import { type PythonTarget, wheelPlatforms } from './target.js';

/** Changes whenever sets of the same requirements would come out otherwise. */
const FORMAT = 1;
const FETCH_MS = 30 * 60_000;

/** Python looks for modules in its working directory: in one where nobody else has put any. */
const apart = { cwd: '/' };

/**
 * Runs pip with two facts of the image in place of the host's: which Python the markers of requirements are about (pip has options for
 * tags, not for markers), and which program installed scripts start with.
 */
const PIP = `
import json, sys
facts, program, *arguments = sys.argv[1:]
sys.argv[0] = "pip"
from pip._vendor.packaging import markers
own = markers.default_environment
markers.default_environment = lambda: {**own(), **json.loads(facts)}
if program: sys.executable = program
from pip._internal.cli.main import main
sys.exit(main(arguments))
`;

/**
 * Provides the wheels of a list of requirements, with all that they need.
 *
 * @param requirements as pip takes them: names with extras, versions and markers
 * @throws EngineError `host_unfit` without pip, `build_failed` where no wheels fit, with pip's own words
 */
export async function ensurePipSet(
  requirements: readonly string[],
  target: PythonTarget,
  options: SetOptions,
): Promise<PackageSet> {
  const { sitePackages, version, libc, program } = target;
  return await ensureSet(
    {
      manager: 'pip',
      inputs: { format: FORMAT, requirements, version, libc, program, sitePackages },
      make: async (root, scratch) => {
        const pip = await findPip(options.signal);
        const wheels = join(scratch, 'wheels');
        await mkdir(wheels);
        await fetchWheels(pip, requirements, target, wheels, options);
        const lock = await lockOf(wheels);
        options.onProgress?.(`installing ${lock.length} wheels`);
        await install(pip, lock, target, { wheels, root, scratch }, options);
        return lock;
      },
    },
    options,
  );
}

interface Pip {
  python: string;
  /** Of the host's Python. */
  version: string;
}

/** The user's own pip before the system's: its settings are the ones that he knows. */
async function findPip(signal: AbortSignal | undefined): Promise<Pip> {
  const own = (process.env.PATH ?? '').split(delimiter).filter((dir) => dir.startsWith('/'));
  const code = 'import sys, pip; print("%d.%d" % sys.version_info[:2])';
  for (const python of new Set([...own.map((dir) => join(dir, 'python3')), '/usr/bin/python3'])) {
    const there = await access(python, constants.X_OK).then(
      () => true,
      () => false,
    );
    if (!there) continue;
    try {
      const version = await run(python, ['-c', code], { ...apart, collect: true, signal, timeoutMs: 60_000 });
      return { python, version: version.toString().trim() };
    } catch (error) {
      if (!(error instanceof RunError)) throw error; // This one has no pip.
    }
  }
  throw new EngineError('host_unfit', 'pip, which fetches the packages of "pip", is not installed', {
    remedy: 'apt-get install python3-pip',
  });
}

async function runPip(
  pip: Pip,
  target: PythonTarget,
  args: readonly string[],
  options: SetOptions & { program?: string },
): Promise<void> {
  const facts = {
    ...{ python_version: target.version, python_full_version: `${target.version}.0` },
    ...{ implementation_name: 'cpython', implementation_version: `${target.version}.0` },
    ...{ os_name: 'posix', sys_platform: 'linux', platform_system: 'Linux', platform_machine: 'x86_64' },
    platform_python_implementation: 'CPython',
  };
  await run(pip.python, ['-c', PIP, JSON.stringify(facts), options.program ?? '', ...args], {
    ...apart,
    signal: options.signal,
    onLine: options.onProgress,
    timeoutMs: FETCH_MS,
  });
}

/** Only wheels: to build a source distribution runs its code, and makes something that fits this host. */
function tagOptions({ version, libc }: PythonTarget): string[] {
  const platforms = wheelPlatforms(libc).flatMap((name) => ['--platform', name]);
  return ['--only-binary=:all:', '--implementation', 'cp', '--python-version', version, ...platforms];
}

async function fetchWheels(
  pip: Pip,
  requirements: readonly string[],
  target: PythonTarget,
  wheels: string,
  options: SetOptions,
): Promise<void> {
  const quiet = ['--no-input', '--progress-bar', 'off', '--disable-pip-version-check'];
  try {
    await runPip(
      pip,
      target,
      ['download', ...quiet, ...tagOptions(target), '-d', wheels, '--', ...requirements],
      options,
    );
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    const said = error.output.split('\n').filter((line) => line.startsWith('ERROR: '));
    const problem = said.at(-1)?.slice('ERROR: '.length) ?? error.message;
    const { version, libc } = target;
    throw new EngineError(
      'build_failed',
      `pip could not fetch wheels for Python ${version}, ${libc.kind} ${libc.version}: ${problem}`,
      {
        remedy: 'Only wheels are taken. See whether the index that pip is set up for has one that fits.',
        details: { output: outputOf(error) },
        cause: error,
      },
    );
  }
}

async function lockOf(wheels: string): Promise<LockedPackage[]> {
  const files = (await readdir(wheels)).filter((name) => name.endsWith('.whl')).sort();
  return await Promise.all(
    files.map(async (file) => {
      // NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl; a name has "_" in place of "-".
      const [name, version] = file.split('-') as [string, string];
      const hash = `sha256:${await sha256File(join(wheels, file))}`;
      return { name: name.toLowerCase().replaceAll('_', '-'), version: decodeURIComponent(version), hash };
    }),
  );
}

/** Unpacks what the lock names and nothing else, into `root` as it will lie in the image. */
async function install(
  pip: Pip,
  lock: readonly LockedPackage[],
  target: PythonTarget,
  dirs: { wheels: string; root: string; scratch: string },
  options: SetOptions,
): Promise<void> {
  const list = join(dirs.scratch, 'lock.txt');
  await writeFile(
    list,
    lock.map(({ name, version, hash }) => `${name}==${version} --hash=${hash}\n`).join(''),
  );
  const site = join(dirs.root, target.sitePackages);
  await mkdir(site, { recursive: true });
  const offline = ['--isolated', '--no-index', '--find-links', dirs.wheels, '--no-deps', '--require-hashes'];
  const quiet = ['--no-input', '--no-compile', '--disable-pip-version-check', '--root-user-action', 'ignore'];
  await runPip(
    pip,
    target,
    ['install', ...quiet, ...offline, ...tagOptions(target), '--target', site, '-r', list],
    { ...options, onProgress: undefined, program: target.program },
  );
  const scripts = join(site, 'bin');
  const bin = join(dirs.root, 'usr/local/bin');
  await mkdir(dirname(bin), { recursive: true });
  await rename(scripts, bin).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
  });
  // Without it each child would compile what it is the first to import. Another Python's would not be taken.
  if (pip.version === target.version)
    await run(pip.python, ['-m', 'compileall', '-q', '-s', site, '-p', target.sitePackages, site], {
      signal: options.signal,
      timeoutMs: FETCH_MS,
    }).catch((error) => {
      if (!(error instanceof RunError) || error.kind !== 'failed') throw error; // Templates in packages need not compile.
    });
}
