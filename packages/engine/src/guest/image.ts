/** Images: the read-only root file system that sandboxes of a template share, a squashfs in the cache. */
import { createReadStream } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError } from '../errors.js';
import { sha256 } from '../hash.js';
import { busyboxInputs, makeBusyboxTar } from './busybox.js';
import { matchesStamp, publish, readJson, type Stamp, scratchIn, stampOf, writeJson } from './cache.js';
import { debianInputs, makeDebianTar } from './debian.js';
import type { GuestContext } from './kernel.js';
import { mergeInto } from './packages/merge.js';
import type { PackageSet } from './packages/set.js';
import { PACK_MS, PACKING, packWhole } from './packing.js';
import { makeRootfsTar, type Rootfs, rootfsInputs } from './rootfs/rootfs.js';
import { outputOf, RunError, run } from './run.js';

/** Changes whenever images of the same inputs would come out otherwise. */
const FORMAT = 2;

export interface ImageOptions extends GuestContext {
  /** `debian:SUITE`, `busybox`, or a root file system of the host. */
  base: string | Rootfs;
  /** Debian packages, of the base's suite. */
  packages: readonly string[];
  /** Build it anew even where the cache has it. */
  noCache?: boolean;
}

export interface Image {
  path: string;
  /** File in cache/images: by content, so that an image that is built anew never replaces one in use. */
  name: string;
  sha256: string;
  bytes: number;
  cached: boolean;
}

interface ImageRecord {
  name: string;
  inputs: unknown;
  stamp: Stamp;
}

/**
 * Provides the image of a base and its packages. Cached by what it is made from, whatever the day.
 *
 * @throws EngineError `template_invalid` for an unknown base, `host_unfit` where this host cannot make it, `build_failed` with the
 * output where it could and did not (an unknown package), `cancelled`
 */
export async function ensureImage(options: ImageOptions): Promise<Image> {
  const parent = join(options.home, 'cache/images');
  await mkdir(parent, { recursive: true, mode: 0o700 });
  const maker = makerOf(options);
  const inputs = { format: FORMAT, ...(await maker.inputs()) };
  const recordPath = join(parent, `${sha256(JSON.stringify(inputs))}.json`);
  if (!options.noCache) {
    const held = await openImage(parent, recordPath);
    if (held) return held;
  }
  await using scratch = await scratchIn(parent);
  const tar = join(scratch.dir, 'root.tar');
  const file = join(scratch.dir, 'image');
  await maker.makeTar(tar, scratch.dir);
  options.onProgress?.('packing the image');
  await pack(tar, file, maker.newest, options);
  await rm(tar);
  return await keepImage(file, parent, recordPath, inputs);
}

/**
 * Provides an image with sets of packages on top of another one. Where both have a file, the set's counts.
 *
 * @throws EngineError `build_failed`, `cancelled`
 */
export async function ensureMerged(
  base: Image,
  sets: readonly PackageSet[],
  options: GuestContext & { noCache?: boolean },
): Promise<Image> {
  if (sets.length === 0) return base;
  const parent = join(options.home, 'cache/images');
  const inputs = { format: FORMAT, merged: base.sha256, sets: sets.map((set) => set.sha256) };
  const recordPath = join(parent, `${sha256(JSON.stringify(inputs))}.json`);
  const held = options.noCache ? null : await openImage(parent, recordPath);
  if (held) return held;
  await using scratch = await scratchIn(parent);
  const file = join(scratch.dir, 'image');
  await mergeInto(
    file,
    base.path,
    sets.map((set) => set.path),
    scratch.dir,
    options,
  );
  return await keepImage(file, parent, recordPath, inputs);
}

/** Moves a new image to its place in the cache, and notes what it was made from. */
async function keepImage(file: string, parent: string, recordPath: string, inputs: unknown): Promise<Image> {
  const stamp = await stampOf(file);
  const name = `${stamp.sha256}.squashfs`;
  await publish(file, parent, name);
  const record: ImageRecord = { name, inputs, stamp };
  await writeJson(recordPath, record);
  return { path: join(parent, name), name, sha256: stamp.sha256, bytes: stamp.bytes, cached: false };
}

/** How the tar of a base is made. `inputs` is all that its content depends on. */
interface Maker {
  inputs(): Promise<Record<string, unknown>>;
  makeTar(to: string, scratch: string): Promise<void>;
  /**
   * Time of the newest file in the tar, seconds since 1970, where it is known. The image itself is of that time: made anew of the same files it is
   * the same image, and no template that stands on it becomes stale.
   */
  newest?: number;
}

function makerOf(options: ImageOptions): Maker {
  const { base } = options;
  if (typeof base !== 'string')
    return {
      inputs: () => rootfsInputs(base, options),
      makeTar: (to) => makeRootfsTar(base, to, options),
    };
  const [kind, suite] = base.split(':', 2);
  if (base === 'busybox') {
    if (options.packages.length > 0)
      throw new EngineError(
        'template_invalid',
        `base "busybox" takes no packages, but ${options.packages[0]} is listed`,
        {
          remedy: 'Use "debian:bookworm" as base, or remove "packages".',
        },
      );
    return { inputs: busyboxInputs, makeTar: (to) => makeBusyboxTar(to, options), newest: 0 };
  }
  if (kind === 'debian' && suite !== undefined && /^[a-z][a-z0-9-]*$/.test(suite)) {
    const packages = [...new Set(options.packages)].sort();
    return {
      inputs: () => debianInputs(suite, packages, options),
      makeTar: (to, scratch) => makeDebianTar(suite, packages, to, scratch, options),
    };
  }
  throw new EngineError('template_invalid', `base ${JSON.stringify(base)} is not known`, {
    remedy: 'Use "debian:bookworm" (any suite of Debian) or "busybox".',
  });
}

/** A tar to a squashfs: without loop devices, mounts or root. */
async function pack(
  tar: string,
  to: string,
  newest: number | undefined,
  options: ImageOptions,
): Promise<void> {
  const env: Record<string, string> = newest === undefined ? {} : { SOURCE_DATE_EPOCH: String(newest) };
  try {
    const packTar = () =>
      run('sqfstar', [...PACKING, to], {
        env,
        signal: options.signal,
        input: createReadStream(tar, { highWaterMark: 1 << 20 }),
        timeoutMs: PACK_MS,
      });
    await packWhole(to, packTar, options);
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    if (error.kind === 'missing')
      throw new EngineError('host_unfit', 'sqfstar, which makes images, is not installed', {
        remedy: 'apt-get install squashfs-tools (4.5 or newer)',
        cause: error,
      });
    throw new EngineError('build_failed', `packing the image failed: ${error.message}`, {
      details: { output: outputOf(error) },
      cause: error,
    });
  }
}

async function openImage(parent: string, recordPath: string): Promise<Image | null> {
  const record = await readJson<ImageRecord>(recordPath);
  if (!record) return null;
  const path = join(parent, record.name);
  if (!(await matchesStamp(path, record.stamp))) return null;
  return { path, name: record.name, sha256: record.stamp.sha256, bytes: record.stamp.bytes, cached: true };
}
