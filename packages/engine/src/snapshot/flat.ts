import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { readQcow2Map } from '../disk/qcow2-map.js';
import {
  coveredBytes,
  flattenMemory,
  type LayerExtent,
  type MergedExtent,
  mergeLayers,
} from '../memory/index.js';
import type { DiskLink } from './chain.js';
import type { BranchOrigin, Manifest } from './manifest.js';
import { sealPart } from './seal.js';
import { syncFile } from './sync.js';

/** Names of the files that stand alone. No layer or overlay has them, so that both can lie in one directory. */
const BASE = 'base';
const WHOLE = 'whole';

/** What is made into one file each. */
export interface FlatSource {
  memoryBytes: number;
  diskBytes: number;
  /** Merged map of the memory, and its files, base first. */
  map: readonly MergedExtent[];
  files: readonly string[];
  disks: readonly DiskLink[];
}

/**
 * Writes memory and disk of a snapshot as files that stand alone, synced and hashed.
 *
 * @param dir where to; names of other files than those of the snapshot are used
 */
export async function writeFlat(
  dir: string,
  source: FlatSource,
  signal?: AbortSignal,
): Promise<Pick<Manifest['files'], 'memory' | 'disk'>> {
  const [base, whole] = [join(dir, BASE), join(dir, WHOLE)];
  // What a crash has left.
  await Promise.all([rm(base, { force: true }), rm(whole, { force: true })]);
  const options = { ...(signal && { signal }) };
  try {
    await flattenMemory(source.map, source.files, base, source.memoryBytes, options);
    const map = await diskMap(source.disks, source.diskBytes);
    const paths = source.disks.map(({ path }) => path);
    await flattenMemory(map, paths, whole, source.diskBytes, { ...options, padded: true });
    const memory = await sealPart(base, BASE, signal);
    await Promise.all([syncFile(base), syncFile(whole)]);
    return { memory, disk: { ...(await sealPart(whole, WHOLE, signal)), whole: true } };
  } catch (error) {
    await Promise.all([rm(base, { force: true }), rm(whole, { force: true })]);
    throw error;
  }
}

/** Which file shows each part of a disk: its base is raw, all above are overlays. */
async function diskMap(disks: readonly DiskLink[], bytes: number): Promise<MergedExtent[]> {
  const layers: LayerExtent[][] = [];
  for (const { path } of disks.slice(1)) layers.push(await readQcow2Map(path, bytes));
  return mergeLayers(bytes, layers);
}

/**
 * The origin of a branch that has become flat.
 *
 * @param map of the chain that it stood on
 * @param base what the base of that chain says of what is below it, when it was flattened itself
 * @param layerBytes bytes of its layer's file
 */
export function flatOrigin(
  branch: BranchOrigin,
  map: readonly MergedExtent[],
  base: Manifest,
  layerBytes: number,
): BranchOrigin {
  const changed = map.filter((extent) => extent.kind === 'zero' || extent.file > 0).map(range);
  return {
    ...branch,
    extents: [],
    lowerDisks: [],
    flat: {
      changed: union([...changed, ...(base.branch?.flat?.changed ?? [])]),
      layer: { physicalBytes: layerBytes, logicalBytes: coveredBytes(branch.extents) },
    },
  };
}

interface Range {
  guestOffset: number;
  length: number;
}

function range({ guestOffset, length }: Range): Range {
  return { guestOffset, length };
}

/** Ranges in order, those that touch joined. */
function union(ranges: Range[]): Range[] {
  const out: Range[] = [];
  for (const next of ranges.sort((a, b) => a.guestOffset - b.guestOffset)) {
    const last = out.at(-1);
    if (last && next.guestOffset <= last.guestOffset + last.length)
      last.length = Math.max(last.length, next.guestOffset + next.length - last.guestOffset);
    else out.push({ ...next });
  }
  return out;
}
