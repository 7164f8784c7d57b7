import type { GraftExtent } from '../memory/index.js';
import type { RamRange } from './types.js';

/**
 * Extents as a VMM can be given them. Guest RAM above 3 GiB is in two ranges, which may lie apart in the VMM: an extent that goes over the end of
 * one is given in parts.
 */
export function splitAtRanges(
  extents: readonly GraftExtent[],
  ram: readonly RamRange[],
): readonly GraftExtent[] {
  const ends = ram.map(({ guestOffset, length }) => guestOffset + length).sort((a, b) => (a < b ? -1 : 1));
  // What goes beyond the last is refused by the shim, as it is.
  const cuts = ends.slice(0, -1);
  return cuts.length === 0 ? extents : extents.flatMap((extent) => splitAt(extent, cuts));
}

function splitAt(extent: GraftExtent, cuts: readonly bigint[]): GraftExtent[] {
  const end = extent.guestOffset + extent.length;
  const bounds = [extent.guestOffset, ...cuts.filter((cut) => cut > extent.guestOffset && cut < end), end];
  return bounds.slice(0, -1).map((from, index) => ({
    ...extent,
    guestOffset: from,
    length: bounds[index + 1]! - from,
    fileOffset: extent.kind === 'zero' ? extent.fileOffset : extent.fileOffset + from - extent.guestOffset,
  }));
}
