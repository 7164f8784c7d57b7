/** Puts trees of files on top of an image: without mounts, and without unpacking the image where only root could. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError } from '../../errors.js';
import { describeImage, PACK_MS, PACKING, packWhole } from '../packing.js';
import { outputOf, RunError, type RunOptions, run } from '../run.js';

/**
 * Writes an image of a base with the content of tars over it.
 *
 * The base is turned into a text that describes it (unsquashfs -pf), data included, which mksquashfs adds to the tree of the tars.
 *
 * @param tars of ours, owned by root throughout
 * @param scratch directory that is removed by the caller
 */
export async function mergeInto(
  to: string,
  base: string,
  tars: readonly string[],
  scratch: string,
  context: { signal?: AbortSignal | undefined; onProgress?: ((text: string) => void) | undefined },
): Promise<void> {
  const options: RunOptions = { signal: context.signal, timeoutMs: PACK_MS };
  const tree = join(scratch, 'tree');
  const description = join(scratch, 'base');
  await mkdir(tree, { mode: 0o755 });
  context.onProgress?.('packing the image with its packages');
  try {
    for (const tar of tars) await run('tar', ['-C', tree, '-xpf', tar], options);
    await describeBase(base, description, options);
    // Whoever is not root is so in a namespace of his own, where the files that he has unpacked are root's.
    const asRoot = process.getuid?.() === 0 ? [] : ['unshare', '--user', '--map-root-user', '--'];
    const command = [...asRoot, 'mksquashfs', tree, to, ...PACKING, '-noappend', '-pf', description];
    await packWhole(to, () => run(command[0]!, command.slice(1), options), options);
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    throw new EngineError('build_failed', `packing the image with its packages failed: ${error.message}`, {
      ...(error.kind === 'missing' && { remedy: 'apt-get install squashfs-tools (4.5 or newer)' }),
      details: { output: outputOf(error) },
      cause: error,
    });
  }
}

async function describeBase(base: string, to: string, options: RunOptions): Promise<void> {
  try {
    await describeImage(base, to, options);
  } catch (error) {
    if (!(error instanceof RunError) || error.kind !== 'failed') throw error;
    throw new EngineError(
      'build_failed',
      `the base of the image, ${base}, cannot be read: ${error.message}`,
      {
        remedy: 'Build with --no-cache: its base is made anew.',
        details: { output: outputOf(error) },
        cause: error,
      },
    );
  }
}
