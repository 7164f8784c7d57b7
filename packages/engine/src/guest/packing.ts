/** How images are packed, and read back before anything is built on them. */
import { rm } from 'node:fs/promises';
import { EngineError } from '../errors.js';
import { outputOf, RunError, type RunOptions, run } from './run.js';

/** LZ4 is what an emulated guest unpacks fastest. */
export const PACKING = ['-quiet', '-no-progress', '-comp', 'lz4', '-b', '128K', '-no-xattrs'] as const;

/** Time for a program that reads or writes an image, ms. A base takes seconds; what a user puts into it is not bounded. */
export const PACK_MS = 600_000;

const TRIES = 2;

/**
 * Packs an image and reads all of it: the packer's threads were seen to write one, once, that could not be unpacked, and an image is kept by what
 * it was made from, so that every later build would meet it. Reading takes 0.3 s for 200 MB.
 *
 * @param pack writes `file`, which is not there; called again where what it wrote cannot be read
 * @throws EngineError `build_failed` where that is so each time; what `pack` throws
 */
export async function packWhole(
  file: string,
  pack: () => Promise<unknown>,
  options: Pick<RunOptions, 'signal'>,
): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    await pack();
    try {
      return await describeImage(file, '/dev/null', options);
    } catch (error) {
      if (!(error instanceof RunError) || error.kind !== 'failed') throw error;
      if (attempt < TRIES) {
        await rm(file, { force: true });
        continue;
      }
      throw new EngineError(
        'build_failed',
        `an image was packed ${TRIES} times, and could not be read back`,
        {
          remedy: "Look for faults of this host's memory and disk (dmesg), and build again.",
          details: { output: outputOf(error) },
          cause: error,
        },
      );
    }
  }
}

/** Writes a text that describes an image, data included, as mksquashfs takes it. Reads every block of the image. */
export async function describeImage(
  image: string,
  to: string,
  options: Pick<RunOptions, 'signal'>,
): Promise<void> {
  await run('unsquashfs', ['-no-progress', '-pf', to, image], {
    signal: options.signal,
    timeoutMs: PACK_MS,
  });
}
