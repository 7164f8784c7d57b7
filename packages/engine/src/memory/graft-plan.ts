import type { MergedExtent } from './extents.js';

/** Mappings that a graft may leave in a VMM. More slow every later freeze: 16,000 cost 54 ms where 74 cost 1 (design, section 4). */
export const MAX_MAPPINGS = 1000;

/** An extent at least this long is mapped; a shorter one is copied, since a mapping of it costs more than its pages. */
const MAP_FROM_BYTES = 64 * 1024;

/** What the shim does for one extent. `file` indexes the snapshot's files, base first. */
export interface GraftExtent {
  kind: 'map' | 'copy' | 'zero';
  file: number;
  fileOffset: bigint;
  guestOffset: bigint;
  length: bigint;
}

/** A plan and what it costs. */
export interface PlannedGraft {
  extents: GraftExtent[];
  /** Mappings of guest RAM after the graft, at most. */
  mappings: number;
  /** Bytes that each child gets as private copies at once. */
  copiedBytes: number;
  /** There are more long extents than may be mapped. */
  crowded: boolean;
}

/**
 * Plans how a snapshot's merged map goes into a VMM: the base whole, then over it long extents mapped and short ones copied,
 * within {@link MAX_MAPPINGS}.
 *
 * @param map the merged map, as `mergeLayers` returns it
 * @param ramBytes size of guest RAM, bytes
 */
export function planGraft(map: readonly MergedExtent[], ramBytes: number): PlannedGraft {
  const above = map.filter((extent) => extent.kind === 'zero' || extent.file > 0);
  const mapFrom = thresholdFor(above);
  const extents: GraftExtent[] = [
    { kind: 'map', file: 0, fileOffset: 0n, guestOffset: 0n, length: BigInt(ramBytes) },
  ];
  let mappings = 1;
  let copiedBytes = 0;
  for (const extent of above) {
    const mapped = extent.length >= mapFrom;
    // Each mapping laid into another splits it: one more in the middle, one more after it.
    if (mapped) mappings += 2;
    else copiedBytes += extent.length;
    extents.push(toGraft(extent, mapped));
  }
  return { extents, mappings, copiedBytes, crowded: mapFrom > MAP_FROM_BYTES };
}

function toGraft(extent: MergedExtent, mapped: boolean): GraftExtent {
  const place = { guestOffset: BigInt(extent.guestOffset), length: BigInt(extent.length) };
  if (extent.kind === 'zero') return { kind: 'zero', file: 0, fileOffset: 0n, ...place };
  return {
    kind: mapped ? 'map' : 'copy',
    file: extent.file,
    fileOffset: BigInt(extent.fileOffset),
    ...place,
  };
}

/** The shortest length to map so that the mappings stay within their bound. */
function thresholdFor(above: readonly MergedExtent[]): number {
  const most = Math.floor((MAX_MAPPINGS - 1) / 2);
  const long = above.map((extent) => extent.length).filter((length) => length >= MAP_FROM_BYTES);
  if (long.length <= most) return MAP_FROM_BYTES;
  long.sort((a, b) => b - a);
  return long[most]! + 1;
}
