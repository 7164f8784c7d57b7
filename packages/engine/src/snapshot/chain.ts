import { join } from 'node:path';
import { EngineError } from '../errors.js';
import {
  assertExtents,
  type GraftExtent,
  type MergedExtent,
  mergeLayers,
  planGraft,
} from '../memory/index.js';
import { type Manifest, standsAlone } from './manifest.js';

/** Most links from a base to a snapshot, and most files of its disk: each is one that a read may go through. */
export const MOST_LINKS = 16;

/** From so many on a snapshot is flattened in the background, so that the limit is not met. */
const FLATTEN_LINKS = 12;

/** Memory that each child would copy at its start, bytes, from which on flattening is worth it. */
const FLATTEN_COPIED = 64 * 1024 * 1024;

/** One file of a disk: what is not in it shows the one below. */
export interface DiskLink {
  path: string;
  format: 'raw' | 'qcow2';
}

/** What a snapshot is made of, from its base up. */
export interface Chain {
  /** Base first, the snapshot itself last. */
  links: Manifest[];
  /** Memory files, base first. */
  files: { path: string; bytes: bigint }[];
  /** What each page shows. */
  map: MergedExtent[];
  /** The graft of the merged map. */
  extents: GraftExtent[];
  /** More runs of pages than can be mapped: those beyond are copied by each child. */
  crowded: boolean;
  /** Memory that each child copies at its start, bytes. */
  copiedBytes: number;
  disks: DiskLink[];
}

/**
 * Finds all that a snapshot stands on, and merges its memory.
 *
 * @throws EngineError snapshot_corrupt when a link is missing, or a layer does not belong on what is below it
 */
export async function resolveChain(
  manifest: Manifest,
  manifestOf: (id: string) => Promise<Manifest>,
  directoryOf: (id: string) => string,
): Promise<Chain> {
  const links = [manifest];
  for (const id of [...(manifest.branch?.chain ?? [])].reverse()) {
    if (standsAlone(links[0]!)) break;
    links.unshift(await linkOf(manifest, id, manifestOf));
  }
  links.forEach((link, index) => {
    checkLink(manifest, link, links[index - 1]);
  });
  const layers = links.slice(1).map((link) => link.branch!.extents);
  const map = mergeLayers(manifest.memoryBytes, layers);
  const plan = planGraft(map, manifest.memoryBytes);
  return {
    links,
    files: links.map((link) => ({
      path: join(directoryOf(link.id), link.files.memory.name),
      bytes: BigInt(link.files.memory.bytes),
    })),
    map,
    extents: plan.extents,
    crowded: plan.crowded,
    copiedBytes: plan.copiedBytes,
    disks: disksOf(links, directoryOf),
  };
}

/** Whether a chain has come near its limits: its snapshot is better flattened. */
export function wantsFlattening({ links, disks, crowded, copiedBytes }: Chain): boolean {
  if (links.length === 1) return false;
  return (
    links.length >= FLATTEN_LINKS || disks.length >= FLATTEN_LINKS || crowded || copiedBytes > FLATTEN_COPIED
  );
}

function disksOf(links: readonly Manifest[], directoryOf: (id: string) => string): DiskLink[] {
  const disks: DiskLink[] = [];
  for (const link of links)
    for (const { name, whole } of [...(link.branch?.lowerDisks ?? []), link.files.disk]) {
      const alone = whole === true || !link.branch;
      if (alone) disks.length = 0;
      disks.push({ path: join(directoryOf(link.id), name), format: alone ? 'raw' : 'qcow2' });
    }
  return disks;
}

async function linkOf(
  top: Manifest,
  id: string,
  manifestOf: (id: string) => Promise<Manifest>,
): Promise<Manifest> {
  try {
    return await manifestOf(id);
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'snapshot_not_found') throw error;
    throw corrupt(top, `the snapshot ${id} below it is missing`);
  }
}

/** A layer belongs on exactly one link: the one it was compared with. */
function checkLink(top: Manifest, link: Manifest, below: Manifest | undefined): void {
  const parent = standsAlone(link) ? undefined : link.branch?.parent;
  if (parent !== below?.id)
    throw corrupt(top, `${link.id} stands on ${parent ?? 'nothing'}, not on ${below?.id ?? 'nothing'}`);
  if (link.memoryBytes !== top.memoryBytes)
    throw corrupt(top, `${link.id} has ${link.memoryBytes} bytes of memory, not ${top.memoryBytes}`);
  if (!link.branch) return;
  try {
    assertExtents(link.branch.extents, top.memoryBytes);
  } catch (error) {
    throw corrupt(top, `the layer of ${link.id}: ${error instanceof Error ? error.message : error}`);
  }
}

function corrupt(manifest: Manifest, problem: string): EngineError {
  return new EngineError('snapshot_corrupt', `snapshot ${manifest.id} is damaged: ${problem}`, {
    remedy: 'Fork from another snapshot, or build the template again.',
  });
}
