import type { GraftExtent } from '../memory/index.js';
import type { CapturePlan } from '../shim/index.js';
import type { Chain, Manifest } from '../snapshot/index.js';

/**
 * What a capture is compared with: the files of its previous link, and which of them the source itself was forked from. Pages of those the
 * source shows too unless it has them for itself; pages of newer files are looked at.
 *
 * @param chain of the previous link
 * @param fork the snapshot that the source was forked from
 */
export function belowOf(chain: Chain, fork: Manifest): CapturePlan['below'] {
  const at = chain.links.findIndex(({ id }) => id === fork.id);
  if (at >= 0) return { files: chain.files, extents: chain.extents, origin: at + 1 };
  // A link above the fork's snapshot is flat: its base holds both what the source was forked from and what has changed since. It goes in
  // twice, the second time for what may have changed.
  const [base, ...above] = chain.extents;
  const changed = chain.links[0]!.branch?.flat?.changed ?? [];
  const again = changed.map(
    ({ guestOffset, length }): GraftExtent => ({
      kind: 'map',
      file: 1,
      fileOffset: BigInt(guestOffset),
      guestOffset: BigInt(guestOffset),
      length: BigInt(length),
    }),
  );
  const shifted = above.map((extent) =>
    extent.kind === 'zero' ? extent : { ...extent, file: extent.file + 1 },
  );
  return { files: [chain.files[0]!, ...chain.files], extents: [base!, ...again, ...shifted], origin: 1 };
}
