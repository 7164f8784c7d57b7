import type { TreeNode } from '@forkd/api';
import { Command } from 'commander';
import { action } from '../context.js';
import { age, bytes } from '../format.js';
import { table } from '../output.js';

/** `forkd tree`: templates, snapshots and sandboxes by lineage. */
export function treeCommand(): Command {
  const command = new Command('tree').description(
    'draw templates, snapshots and sandboxes by lineage, with the memory and disk that each adds',
  );
  return action(command, async (context) => {
    const nodes = await (await context.client()).tree(context.signal);
    context.out.answer(nodes, drawTree);
    return 0;
  });
}

/** Draws nodes of which parents come before their children. */
export function drawTree(nodes: readonly TreeNode[]): string {
  const below = new Map<string | null, TreeNode[]>();
  for (const node of nodes) below.set(node.parent, [...(below.get(node.parent) ?? []), node]);
  const rows: string[][] = [];
  const draw = (node: TreeNode, lead: string, branch: string, inner: string): void => {
    const name = node.tags.length > 0 ? `${node.id} (${node.tags.join(' ')})` : node.id;
    const created = node.created_at_unix === undefined ? '' : age(node.created_at_unix);
    const sizes = node.kind === 'template' ? ['', ''] : [bytes(node.memory_bytes), bytes(node.disk_bytes)];
    rows.push([`${lead}${branch}${name}`, node.state, created, ...sizes]);
    const children = below.get(node.id) ?? [];
    children.forEach((child, index) => {
      const last = index === children.length - 1;
      draw(child, lead + inner, last ? '└─ ' : '├─ ', last ? '   ' : '│  ');
    });
  };
  for (const root of below.get(null) ?? []) draw(root, '', '', '');
  return table(['NAME', 'STATE', 'CREATED', '>MEMORY', '>DISK'], rows);
}
