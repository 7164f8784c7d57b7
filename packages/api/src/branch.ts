/** Branches: captures of running sandboxes, and the lineage that they make. */
import Type, { type Static } from 'typebox';
import { closed, Tag } from './common.js';
import { ForkFailure, SandboxInfo } from './sandboxes.js';
import { SnapshotInfo } from './snapshots.js';

export const branchModes = ['live', 'diff', 'full'] as const;
export type BranchMode = (typeof branchModes)[number];

/** Largest number of children that one branch forks. */
export const maxBranchChildren = 1000;

/** `POST /v1/sandboxes/:id/branch`. */
export const BranchRequest = closed(
  {
    tag: Type.Optional(Tag),
    mode: Type.Optional(
      Type.Enum(branchModes, {
        description:
          'live (default): memory is copied after the pause; where this host does not permit that, diff: in the pause. full: the snapshot stands alone.',
      }),
    ),
    wait: Type.Optional(
      Type.Boolean({
        description: 'false: answer 202 as soon as the source runs again; the snapshot is then `writing`.',
      }),
    ),
    n: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: maxBranchChildren,
        description: 'Fork as many children of it in this call.',
      }),
    ),
    // Of forkd v1: diff is `mode: diff`; what a branch changes is always measured.
    diff: Type.Optional(Type.Boolean()),
    measure_diff: Type.Optional(Type.Boolean()),
  },
  { $id: 'BranchRequest' },
);
export type BranchRequest = Static<typeof BranchRequest>;

/** Answer of a branch: the snapshot, and with `n` the children. */
export const BranchReply = Type.Object(
  {
    ...SnapshotInfo.properties,
    sandboxes: Type.Union([Type.Integer(), Type.Array(SandboxInfo)], {
      description: 'With `n` the children; else the number of sandboxes that continue from it.',
    }),
    failures: Type.Optional(Type.Array(ForkFailure, { description: 'Children that could not be started.' })),
  },
  { $id: 'BranchReply' },
);
export type BranchReply = Static<typeof BranchReply>;

/** `POST /v1/sandboxes/:id/promote`: this sandbox takes the place of another one. */
export const PromoteRequest = closed(
  // What is no id is no sandbox, which the answer says.
  { over: Type.String({ minLength: 1, maxLength: 64, description: 'Sandbox id, sb-...' }) },
  { $id: 'PromoteRequest' },
);
export type PromoteRequest = Static<typeof PromoteRequest>;

export const PromoteReply = Type.Object(
  {
    sandbox: SandboxInfo,
    snapshot: SnapshotInfo,
  },
  { $id: 'PromoteReply', description: 'The sandbox that was promoted, and what the other one was.' },
);
export type PromoteReply = Static<typeof PromoteReply>;

/** `POST /v1/snapshots/:ref/tag`. */
export const TagRequest = closed(
  {
    tag: Tag,
    move: Type.Optional(Type.Boolean({ description: 'Take the tag from the snapshot that has it.' })),
  },
  { $id: 'TagRequest' },
);
export type TagRequest = Static<typeof TagRequest>;

/** What a garbage collection, or a removal with dependents, has removed. */
export const RemovalReport = Type.Object(
  {
    removed: Type.Array(Type.String(), { description: 'Ids of snapshots.' }),
    setup_disks: Type.Optional(
      Type.Integer({
        description: 'Of a garbage collection: disks of setups that no template with a tag is built on.',
      }),
    ),
    freed_bytes: Type.Integer({
      description: 'Bytes that they had allocated on disk, without what others have as well.',
    }),
    dry_run: Type.Boolean({ description: 'Nothing was removed: this is what would be.' }),
  },
  { $id: 'RemovalReport' },
);
export type RemovalReport = Static<typeof RemovalReport>;

export const treeKinds = ['template', 'snapshot', 'sandbox'] as const;

/** One thing of the lineage. Memory and disk are what it adds to those above it. */
export const TreeNode = Type.Object(
  {
    kind: Type.Enum(treeKinds),
    id: Type.String({ description: 'Id of a snapshot or sandbox; name of a template.' }),
    parent: Type.Union([Type.String(), Type.Null()], { description: 'Id of the node above.' }),
    tags: Type.Array(Type.String(), { description: 'Tags of a snapshot.' }),
    state: Type.String({
      description: 'Status of a snapshot, state of a sandbox, built or not of a template.',
    }),
    created_at_unix: Type.Optional(Type.Integer()),
    memory_bytes: Type.Optional(
      Type.Integer({ description: 'Of a snapshot: allocated on disk. Of a sandbox: memory of the host.' }),
    ),
    disk_bytes: Type.Optional(Type.Integer()),
  },
  { $id: 'TreeNode' },
);
export type TreeNode = Static<typeof TreeNode>;

/** `GET /v1/tree`: parents before their children. */
export const Tree = Type.Object({ nodes: Type.Array(TreeNode) }, { $id: 'Tree' });
export type Tree = Static<typeof Tree>;
