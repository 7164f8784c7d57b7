import type { LayerExtent, MergedExtent } from './extents.js';

/**
 * Merges a base and its layers into one map: the topmost file wins, each page is listed once, in guest order.
 *
 * @param ramBytes size of guest RAM and of the base, bytes
 * @param layers extent lists from the one just above the base to the topmost
 * @example mergeLayers(8192, [[{ kind: 'zero', guestOffset: 0, length: 4096 }]])
 */
export function mergeLayers(ramBytes: number, layers: readonly (readonly LayerExtent[])[]): MergedExtent[] {
  let map: MergedExtent[] = [{ kind: 'data', guestOffset: 0, length: ramBytes, file: 0, fileOffset: 0 }];
  layers.forEach((layer, index) => {
    map = overlay(map, layer, index + 1);
  });
  return map;
}

/** Puts one layer over a map; linear in both. */
function overlay(
  below: readonly MergedExtent[],
  layer: readonly LayerExtent[],
  file: number,
): MergedExtent[] {
  const out: MergedExtent[] = [];
  let cursor = 0;
  for (const extent of layer) {
    cursor = copyRange(out, below, cursor, lastEnd(out), extent.guestOffset);
    push(out, extent.kind === 'data' ? { ...extent, file } : extent);
  }
  const end = below.length === 0 ? 0 : lastEnd(below);
  copyRange(out, below, cursor, lastEnd(out), end);
  return out;
}

/** Copies what `below` shows of [from, to) and returns where to go on searching. */
function copyRange(
  out: MergedExtent[],
  below: readonly MergedExtent[],
  cursor: number,
  from: number,
  to: number,
): number {
  let index = cursor;
  for (; index < below.length; index++) {
    const extent = below[index]!;
    const end = extent.guestOffset + extent.length;
    const start = Math.max(extent.guestOffset, from);
    const stop = Math.min(end, to);
    if (stop > start) push(out, slice(extent, start, stop - start));
    if (end > to) break;
  }
  return index;
}

function slice(extent: MergedExtent, guestOffset: number, length: number): MergedExtent {
  if (extent.kind === 'zero') return { kind: 'zero', guestOffset, length };
  return { ...extent, guestOffset, length, fileOffset: extent.fileOffset + guestOffset - extent.guestOffset };
}

/** Appends, joining with the extent before where both go on without a break. */
function push(out: MergedExtent[], extent: MergedExtent): void {
  const last = out.at(-1);
  if (last && last.guestOffset + last.length === extent.guestOffset && continues(last, extent)) {
    out[out.length - 1] = { ...last, length: last.length + extent.length };
    return;
  }
  out.push(extent);
}

function continues(last: MergedExtent, next: MergedExtent): boolean {
  if (last.kind === 'zero' || next.kind === 'zero') return last.kind === next.kind;
  return last.file === next.file && last.fileOffset + last.length === next.fileOffset;
}

function lastEnd(map: readonly MergedExtent[]): number {
  const last = map.at(-1);
  return last ? last.guestOffset + last.length : 0;
}
