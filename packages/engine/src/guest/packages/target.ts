/** What an image says of itself: its Python and its C library, which decide which packages fit it. */
import { EngineError } from '../../errors.js';
import { RunError, run } from '../run.js';

/** The Python of an image. */
export interface PythonTarget {
  /** `3.11`. */
  version: string;
  /** Its path in the image. */
  program: string;
  /** Directory that packages are installed into, in the image. */
  sitePackages: string;
  libc: { kind: 'glibc' | 'musl'; version: string };
}

/** In the order of an ordinary PATH. */
const PYTHONS = ['usr/local/bin/python3', 'usr/bin/python3'];
const GLIBC = ['usr/lib/x86_64-linux-gnu/libc.so.6', 'lib/x86_64-linux-gnu/libc.so.6', 'usr/lib64/libc.so.6'];
const MUSL = 'lib/ld-musl-x86_64.so.1';
const DEBIAN = 'etc/debian_version';

/**
 * Finds the Python of an image.
 *
 * @throws EngineError `template_invalid` when it has none
 */
export async function pythonOf(image: string, signal?: AbortSignal): Promise<PythonTarget> {
  const files = await list(image, [...PYTHONS, ...GLIBC, MUSL, DEBIAN], signal);
  for (const name of PYTHONS) {
    const version = /python(3\.\d+)$/.exec(files.get(name) ?? '')?.[1];
    if (version === undefined) continue;
    const local = name.startsWith('usr/local/');
    const debian = !local && files.has(DEBIAN);
    const sitePackages = debian
      ? `/usr/local/lib/python${version}/dist-packages`
      : `${local ? '/usr/local' : '/usr'}/lib/python${version}/site-packages`;
    return { version, program: `/${name}`, sitePackages, libc: await libcOf(image, files, signal) };
  }
  throw new EngineError('template_invalid', 'the image has no python3, which the packages of "pip" are for', {
    remedy: 'Add python3 to "packages", or to your root file system.',
  });
}

/** Entries that are there: their names, with the target of a symbolic link, else ''. */
async function list(
  image: string,
  names: readonly string[],
  signal: AbortSignal | undefined,
): Promise<Map<string, string>> {
  const text = await run('unsquashfs', ['-llc', image, ...names], { collect: true, signal });
  const found = new Map<string, string>();
  for (const line of text.toString().split('\n')) {
    const match = /^[-l]\S+ .* squashfs-root\/(.+?)(?: -> (.+))?$/.exec(line);
    if (match) found.set(match[1]!, match[2] ?? '');
  }
  return found;
}

async function libcOf(
  image: string,
  files: ReadonlyMap<string, string>,
  signal: AbortSignal | undefined,
): Promise<PythonTarget['libc']> {
  for (const name of GLIBC.filter((path) => files.has(path))) {
    const library = await run('unsquashfs', ['-cat', image, name], { collect: true, signal }).catch(
      (error) => {
        if (error instanceof RunError && error.kind === 'failed') return Buffer.alloc(0);
        throw error;
      },
    );
    const version = /stable release version (\d+\.\d+)/.exec(library.toString('latin1'))?.[1];
    if (version !== undefined) return { kind: 'glibc', version };
  }
  if (files.has(MUSL)) return { kind: 'musl', version: '1.2' };
  throw new EngineError('template_invalid', 'the image has no C library for which there are wheels', {
    remedy: 'Use a base with glibc or musl for x86-64, such as "debian:bookworm".',
  });
}

/** Platforms whose wheels run on a C library, the newest first, as pip calls them. */
export function wheelPlatforms({ kind, version }: PythonTarget['libc']): string[] {
  const minor = Number(version.split('.')[1]);
  const upTo = (least: number) => Array.from({ length: minor - least + 1 }, (_, i) => minor - i);
  if (kind === 'musl') return upTo(1).map((n) => `musllinux_1_${n}_x86_64`);
  // pip takes manylinux2014 and what came before it under their old names too.
  return [
    ...upTo(17).map((n) => `manylinux_2_${n}_x86_64`),
    ...['manylinux2014_x86_64', 'manylinux_2_12_x86_64', 'manylinux_2_5_x86_64'],
  ];
}
