/** The files of a branch: a layer over the link below, or memory and disk that stand alone. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { mergeLayers } from '../memory/index.js';
import type { CapturedLayer } from '../shim/index.js';
import { flatOrigin, writeFlat } from '../snapshot/flat.js';
import type { BranchOrigin, Chain, Manifest, SnapshotStore } from '../snapshot/index.js';
import { sealPart } from '../snapshot/seal.js';
import type { FrozenDisk } from '../vmm/types.js';

/** What of a snapshot depends on whether it stands alone. */
export interface Parts {
  memory: Manifest['files']['memory'];
  disk: Manifest['files']['disk'];
  branch: BranchOrigin;
}

/** What a capture has left in the directory of a snapshot to be. */
export interface Captured {
  dir: string;
  /** Of the link below. */
  chain: Chain;
  /** Frozen files of the disk, lowest first. */
  disks: readonly FrozenDisk[];
}

/** Name of the layer there. */
export const LAYER = 'layer';

/** A snapshot as a layer over the previous link. */
export async function linkedParts(
  { dir, disks }: Captured,
  origin: BranchOrigin,
  signal: AbortSignal,
): Promise<Parts> {
  const [memory, ...sealed] = await Promise.all([
    sealPart(join(dir, LAYER), LAYER, signal),
    ...disks.map(async ({ name, whole }) => ({
      ...(await sealPart(join(dir, name), name, signal)),
      ...(whole && { whole }),
    })),
  ]);
  const disk = sealed.pop()!;
  return { memory, disk, branch: { ...origin, lowerDisks: sealed } };
}

/**
 * A snapshot that stands alone, from the layer that was captured and what is below it.
 *
 * @param fork of the snapshot that the source was forked from
 */
export async function flatParts(
  { dir, chain, disks }: Captured,
  layer: CapturedLayer,
  origin: BranchOrigin,
  fork: Manifest,
  store: SnapshotStore,
  signal: AbortSignal,
): Promise<Parts> {
  const { memoryBytes, diskBytes } = fork;
  const above = disks.map(({ name, whole }) => ({
    path: join(dir, name),
    format: whole ? ('raw' as const) : ('qcow2' as const),
  }));
  const whole = above.findLastIndex(({ format }) => format === 'raw');
  const layers = [...chain.links.slice(1).map((link) => link.branch!.extents), layer.extents];
  const map = mergeLayers(memoryBytes, layers);
  const source = {
    memoryBytes,
    diskBytes,
    map,
    files: [...chain.files.map(({ path }) => path), join(dir, LAYER)],
    disks: whole >= 0 ? above.slice(whole) : [...chain.disks, ...above],
  };
  // What is below may be flattened meanwhile: the files of this chain stay until then.
  using _pin = store.reading(chain.links.map(({ id }) => id));
  const parts = await writeFlat(dir, source, signal);
  await Promise.all([LAYER, ...disks.map(({ name }) => name)].map((name) => rm(join(dir, name))));
  return { ...parts, branch: flatOrigin(origin, map, chain.links[0]!, layer.bytes) };
}
