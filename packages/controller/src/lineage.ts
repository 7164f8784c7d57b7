/** What stands on what: snapshots on those below them, sandboxes on the snapshots that they continue from. */
import { type Manifest, standsAlone } from '@forkd/engine';

/** Finds the manifest of a snapshot; undefined when there is none. */
export type ManifestOf = (id: string) => Manifest | undefined;

/** Ids of the snapshots that a snapshot stands on, root first: down to the first that stands alone. */
export function ancestorsOf(manifest: Manifest, manifestOf: ManifestOf): readonly string[] {
  if (standsAlone(manifest)) return [];
  const chain = manifest.branch?.chain ?? [];
  const from = chain.findLastIndex((id) => {
    const link = manifestOf(id);
    return link !== undefined && standsAlone(link);
  });
  return chain.slice(Math.max(0, from));
}

/** Snapshots that stand on `id`, those with the longest chains first: the order in which they can be removed. */
export function descendantsOf(id: string, manifests: Iterable<Manifest>): string[] {
  return byDepth([...manifests])
    .filter(({ ancestors }) => ancestors.includes(id))
    .map(({ manifest }) => manifest.id);
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
  const all = byDepth(manifests);
  const kept = new Set<string>();
  for (const { manifest, ancestors } of all) {
    if (!needed(manifest)) continue;
    kept.add(manifest.id);
    for (const id of ancestors) kept.add(id);
  }
  return all.map(({ manifest }) => manifest).filter(({ id }) => !kept.has(id));
}

/** Each with what it stands on, those with the longest chains first. */
function byDepth(manifests: readonly Manifest[]): { manifest: Manifest; ancestors: readonly string[] }[] {
  const known = new Map(manifests.map((manifest) => [manifest.id, manifest]));
  return manifests
    .map((manifest) => ({ manifest, ancestors: ancestorsOf(manifest, (id) => known.get(id)) }))
    .sort((a, b) => b.ancestors.length - a.ancestors.length || a.manifest.createdAt - b.manifest.createdAt);
}
