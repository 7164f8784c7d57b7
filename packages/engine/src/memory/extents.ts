/**
 * Extents: which pages a file of guest memory holds.
 *
 * A base holds all of guest memory and its holes mean zero. A layer holds only pages that changed, listed by explicit extents;
 * what a layer does not list shows the file below it. A page that became zero is a `zero` extent and takes no room in the file.
 */

/** Size of a guest page, bytes. Extents begin and end on it. */
export const PAGE = 4096;

/** A run of pages of one layer. */
export type LayerExtent =
  | {
      kind: 'data';
      /** First byte in guest RAM, a multiple of PAGE. */
      guestOffset: number;
      /** Bytes, a positive multiple of PAGE. */
      length: number;
      /** First byte in the layer's file, a multiple of PAGE. */
      fileOffset: number;
    }
  | { kind: 'zero'; guestOffset: number; length: number };

/** A run of pages of a merged map: the file that shows it, counted from the base (0) up, or zeros. */
export type MergedExtent =
  | { kind: 'data'; guestOffset: number; length: number; file: number; fileOffset: number }
  | { kind: 'zero'; guestOffset: number; length: number };

/**
 * Checks that extents are page aligned, inside guest RAM, in order and apart.
 *
 * @param extents in guest order
 * @param ramBytes size of guest RAM, bytes
 * @throws RangeError that names the first extent that is wrong
 */
export function assertExtents(extents: readonly LayerExtent[], ramBytes: number): void {
  let end = 0;
  for (const [index, extent] of extents.entries()) {
    const { guestOffset, length } = extent;
    const file = extent.kind === 'data' ? extent.fileOffset : 0;
    const aligned = [guestOffset, length, file].every(
      (value) => Number.isSafeInteger(value) && value >= 0 && value % PAGE === 0,
    );
    if (!aligned || length === 0)
      throw new RangeError(`extent ${index} (${describe(extent)}) is not made of whole ${PAGE}-byte pages`);
    if (guestOffset < end)
      throw new RangeError(`extent ${index} (${describe(extent)}) overlaps or precedes the one before it`);
    if (guestOffset + length > ramBytes)
      throw new RangeError(`extent ${index} (${describe(extent)}) ends past guest RAM of ${ramBytes} bytes`);
    end = guestOffset + length;
  }
}

function describe(extent: LayerExtent): string {
  return `${extent.kind} ${extent.guestOffset}+${extent.length}`;
}

/** Bytes that a list of extents covers. */
export function coveredBytes(extents: readonly { length: number }[]): number {
  return extents.reduce((sum, extent) => sum + extent.length, 0);
}
