import { join } from 'node:path';
import { EngineError } from '../errors.js';
import { assertExtents, type GraftExtent, mergeLayers, planGraft } from '../memory/index.js';
import type { Manifest } from './manifest.js';

/** Most links from a base to a snapshot. Each is a disk that a read may go through. */
export const MOST_LINKS = 16;

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
  /** The graft of the merged map. */
  extents: GraftExtent[];
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
  const links: Manifest[] = [];
  for (const id of manifest.branch?.chain ?? []) links.push(await linkOf(manifest, id, manifestOf));
  links.push(manifest);
  links.forEach((link, index) => {
    checkLink(manifest, link, links[index - 1]);
  });
  const layers = links.flatMap((link) => (link.branch ? [link.branch.extents] : []));
  const plan = planGraft(mergeLayers(manifest.memoryBytes, layers), manifest.memoryBytes);
  return {
    links,
    files: links.map((link) => ({
      path: join(directoryOf(link.id), link.files.memory.name),
      bytes: BigInt(link.files.memory.bytes),
    })),
    extents: plan.extents,
    copiedBytes: plan.copiedBytes,
    disks: links.flatMap((link) =>
      [...(link.branch?.lowerDisks ?? []), link.files.disk].map(({ name }) => ({
        path: join(directoryOf(link.id), name),
        format: link.branch ? ('qcow2' as const) : ('raw' as const),
      })),
    ),
  };
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
  if (link.branch?.parent !== below?.id)
    throw corrupt(
      top,
      `${link.id} stands on ${link.branch?.parent ?? 'nothing'}, not on ${below?.id ?? 'nothing'}`,
    );
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
