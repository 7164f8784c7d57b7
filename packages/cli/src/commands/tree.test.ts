import type { TreeNode } from '@forkd/api';
import { expect, it } from 'vitest';
import { drawTree } from './tree.js';

it('draws what continues from what', () => {
  const node = (
    kind: TreeNode['kind'],
    id: string,
    parent: string | null,
    more: Partial<TreeNode> = {},
  ): TreeNode => ({
    kind,
    id,
    parent,
    tags: [],
    state: 'ready',
    ...more,
  });
  const text = drawTree([
    node('template', 'python', null),
    node('snapshot', 'sn-a', 'python', { tags: ['python'], memory_bytes: 1024, disk_bytes: 0 }),
    node('sandbox', 'sb-a', 'sn-a'),
    node('snapshot', 'sn-b', 'sb-a'),
    node('sandbox', 'sb-b', 'sn-a'),
    node('snapshot', 'sn-lost', null),
  ]);
  const names = text.split('\n').map((line) => line.slice(0, line.indexOf('ready')).trimEnd());
  expect(names.slice(1)).toEqual([
    'python',
    '└─ sn-a (python)',
    '   ├─ sb-a',
    '   │  └─ sn-b',
    '   └─ sb-b',
    'sn-lost',
  ]);
  expect(text).toMatch(/sn-a \(python\) +ready +1\.0 KiB +0 B$/m);
});
