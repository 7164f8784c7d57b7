import { describe, expect, it } from 'vitest';
import type { GraftExtent } from '../memory/index.js';
import { splitAtRanges } from './ranges.js';

const ram = [
  { guestOffset: 0n, length: 30n, address: 1000n },
  { guestOffset: 30n, length: 10n, address: 5000n },
];
const extent = (guestOffset: bigint, length: bigint, more: Partial<GraftExtent> = {}): GraftExtent => ({
  ...{ kind: 'map', file: 1, fileOffset: 100n, guestOffset, length },
  ...more,
});

describe('an extent over guest RAM in two ranges', () => {
  it.each([
    ['within one', extent(0n, 30n), [extent(0n, 30n)]],
    ['within the other', extent(30n, 10n), [extent(30n, 10n)]],
    ['over both', extent(25n, 15n), [extent(25n, 5n), extent(30n, 10n, { fileOffset: 105n })]],
    [
      'of zeros',
      extent(25n, 10n, { kind: 'zero', fileOffset: 0n }),
      [extent(25n, 5n, { kind: 'zero', fileOffset: 0n }), extent(30n, 5n, { kind: 'zero', fileOffset: 0n })],
    ],
    ['beyond the end, which is not ours to refuse', extent(35n, 15n), [extent(35n, 15n)]],
  ])('%s', (_name, given, parts) => {
    expect(splitAtRanges([given], ram)).toEqual(parts);
  });

  it('is left as it is where there is one range', () => {
    const extents = [extent(0n, 30n)];
    expect(splitAtRanges(extents, ram.slice(0, 1))).toBe(extents);
  });
});
