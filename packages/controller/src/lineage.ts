/** What stands on what: snapshots on those below them, sandboxes on the snapshots that they continue from. */
import type { Manifest } from '@forkd/engine';

/** Ids of the snapshots that a snapshot stands on, root first. */
export function ancestorsOf(manifest: Manifest): readonly string[] {
  return manifest.branch?.chain ?? [];
}

/** Snapshots that stand on `id`, those with the longest chains first: the order in which they can be removed. */
export function descendantsOf(id: string, manifests: Iterable<Manifest>): string[] {
  return [...manifests]
    .filter((manifest) => ancestorsOf(manifest).includes(id))
    .sort((a, b) => ancestorsOf(b).length - ancestorsOf(a).length || a.createdAt - b.createdAt)
    .map((manifest) => manifest.id);
}

/**
 * Snapshots that nothing needs, in the order in which they can be removed: each is on its own, or only others before it in the list
 * stand on it.
 *
 * @param needed whether something other than a snapshot needs it: a tag, a sandbox, a branch that is being written
 */
export function unneeded(
  manifests: readonly Manifest[],
  needed: (manifest: Manifest) => boolean,
): Manifest[] {
  const kept = new Set<string>();
  for (const manifest of manifests) {
    if (!needed(manifest)) continue;
    kept.add(manifest.id);
    for (const id of ancestorsOf(manifest)) kept.add(id);
  }
  return manifests
    .filter(({ id }) => !kept.has(id))
    .sort((a, b) => ancestorsOf(b).length - ancestorsOf(a).length || a.createdAt - b.createdAt);
}
