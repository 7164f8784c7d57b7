/** The lineage of all that this daemon has: what continues from what, and what each adds. */
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { SandboxInfo, SnapshotInfo, Tree, TreeNode } from '@forkd/api';
import type { Manifest } from '@forkd/engine';
import type { Services } from './services.js';

/** All nodes, parents before children, siblings by age. */
export async function treeOf({ engine, templates, snapshots, sandboxes }: Services): Promise<Tree> {
  const [known, listed, boxes, manifests] = await Promise.all([
    templates.list(),
    snapshots.list(),
    sandboxes.listWithMemory(),
    snapshots.manifests(),
  ]);
  const manifestOf = new Map(manifests.map((manifest) => [manifest.id, manifest]));
  const live = new Set(boxes.map(({ id }) => id));
  const names = new Set(known.map(({ name }) => name));
  const nodes: TreeNode[] = known.map((template) => ({
    kind: 'template',
    id: template.name,
    parent: null,
    tags: [],
    state: template.building ? 'building' : template.built ? 'built' : 'not built',
  }));
  nodes.push(
    ...(await Promise.all(
      listed.map(async (info): Promise<TreeNode> => {
        const sizes = await engine.snapshotSizes(info.id).catch(() => null);
        return {
          kind: 'snapshot',
          id: info.id,
          parent: parentOf(info, manifestOf.get(info.id), manifestOf, live, names),
          tags: info.tags,
          state: info.status,
          created_at_unix: info.created_at_unix,
          ...(sizes && { memory_bytes: sizes.memoryPhysical + sizes.state, disk_bytes: sizes.diskPhysical }),
        };
      }),
    )),
    ...(await Promise.all(boxes.map((box) => sandboxNode(box, join(engine.home, 'run', box.id))))),
  );
  return { nodes: sorted(nodes) };
}

/** A branch hangs on its source while that lives, else on the snapshot that it stands on. */
function parentOf(
  info: SnapshotInfo,
  manifest: Manifest | undefined,
  manifests: ReadonlyMap<string, Manifest>,
  live: ReadonlySet<string>,
  templates: ReadonlySet<string>,
): string | null {
  const source = info.branched_from;
  if (source !== undefined && live.has(source)) return source;
  // A flat one stands on nothing, and hangs where it came from as long as that is there.
  const below = manifest?.branch?.chain.findLast((id) => manifests.has(id));
  if (below !== undefined) return below;
  return info.template !== undefined && templates.has(info.template) ? info.template : null;
}

async function sandboxNode(box: SandboxInfo, directory: string): Promise<TreeNode> {
  const disk = await diskBytes(directory);
  return {
    kind: 'sandbox',
    id: box.id,
    parent: box.snapshot_id,
    tags: [],
    state: box.state,
    created_at_unix: box.created_at_unix,
    ...(box.memory_bytes !== undefined && { memory_bytes: box.memory_bytes }),
    ...(disk !== null && { disk_bytes: disk }),
  };
}

/** Files of a sandbox's disk in its run directory, of either engine. */
const diskFiles = /^(overlay(-\d+)?|whole-\d+)\.qcow2$|^disk$/;

/** Bytes that a sandbox has allocated on disk and no snapshot counts: an overlay that a branch has captured is linked into it. */
async function diskBytes(directory: string): Promise<number | null> {
  const files = await readdir(directory).catch(() => null);
  if (files === null) return null;
  const disks = files.filter((name) => diskFiles.test(name));
  const facts = await Promise.all(disks.map((name) => stat(join(directory, name)).catch(() => null)));
  return facts.reduce((sum, one) => sum + (one?.nlink === 1 ? one.blocks * 512 : 0), 0);
}

/** Depth first; what hangs on something that is gone is a root. */
function sorted(nodes: readonly TreeNode[]): TreeNode[] {
  const ids = new Set(nodes.map(({ id }) => id));
  const rooted = nodes.map((node) =>
    node.parent !== null && ids.has(node.parent) ? node : { ...node, parent: null },
  );
  const below = new Map<string | null, TreeNode[]>();
  for (const node of rooted) below.set(node.parent, [...(below.get(node.parent) ?? []), node]);
  const order: TreeNode[] = [];
  const visit = (parent: string | null): void => {
    const children = below.get(parent) ?? [];
    children.sort((a, b) => (a.created_at_unix ?? 0) - (b.created_at_unix ?? 0) || (a.id < b.id ? -1 : 1));
    for (const node of children) {
      order.push(node);
      visit(node.id);
    }
  };
  visit(null);
  return order;
}
