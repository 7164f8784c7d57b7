/** Snapshots: immutable captured states. */
import Type, { type Static } from 'typebox';
import { closed, Tag } from './common.js';
import { TemplateSource } from './templates.js';

export const SnapshotStatus = Type.Union([
  Type.Literal('writing'),
  Type.Literal('ready'),
  Type.Literal('failed'),
]);
export type SnapshotStatus = Static<typeof SnapshotStatus>;

export const SnapshotInfo = Type.Object(
  {
    tag: Type.String({ description: 'A tag that points to it, else its id.' }),
    tags: Type.Array(Type.String(), { description: 'All tags that point to it.' }),
    id: Type.String(),
    dir: Type.String({ description: 'Directory on the host.' }),
    created_at_unix: Type.Integer({ description: 'Seconds since the epoch.' }),
    status: SnapshotStatus,
    durable: Type.Boolean({
      description:
        'Whether it outlives a crash of the host: it was synced, with all that it stands on. A moment after it is ready.',
    }),
    bootable: Type.Boolean({ description: 'Whether this host can fork it now.' }),
    warning: Type.Optional(Type.String({ description: 'Why it is not bootable.' })),
    template: Type.Optional(Type.String({ description: 'Name of the template that was built.' })),
    engine: Type.String(),
    engine_version: Type.Optional(Type.String()),
    accelerator: Type.String(),
    memory_mib: Type.Integer(),
    vcpus: Type.Integer(),
    disk_mib: Type.Optional(Type.Integer()),
    interpreters: Type.Array(Type.String()),
    sandboxes: Type.Integer({ description: 'Number of live sandboxes that continue from it.' }),
    // Of a snapshot that was branched off a running sandbox.
    branched_from: Type.Optional(Type.String({ description: 'Sandbox that it was branched off.' })),
    mode: Type.Optional(
      Type.String({
        description: 'How its memory was captured: live or diff; full when it was asked to stand alone.',
      }),
    ),
    mode_reason: Type.Optional(Type.String({ description: 'Why not in the mode that was asked for.' })),
    pause_ms: Type.Optional(
      Type.Number({ description: 'From the last instruction of the source before to the first after.' }),
    ),
    diff_ms: Type.Optional(
      Type.Number({ description: 'From then until its memory was written; of branches of this daemon.' }),
    ),
    diff_physical_bytes: Type.Optional(Type.Integer({ description: 'Bytes of its layer of memory.' })),
    diff_logical_bytes: Type.Optional(
      Type.Integer({ description: 'Bytes of guest memory that differ from the snapshot below.' }),
    ),
  },
  { $id: 'SnapshotInfo' },
);
export type SnapshotInfo = Static<typeof SnapshotInfo>;

export const SnapshotDetail = Type.Object(
  {
    ...SnapshotInfo.properties,
    memory_logical_bytes: Type.Integer(),
    memory_physical_bytes: Type.Integer({ description: 'Allocated on disk; holes do not count.' }),
    vmstate_bytes: Type.Integer(),
    disk_physical_bytes: Type.Integer(),
    image_bytes: Type.Optional(Type.Integer({ description: 'Size of the shared read-only image.' })),
    parent_tag: Type.Optional(Type.String()),
    chain_depth: Type.Integer({ description: 'Number of layers below; 0 for a base.' }),
    ancestors: Type.Array(Type.String(), { description: 'Root first.' }),
    dependents: Type.Array(Type.String(), {
      description: 'Sandboxes and snapshots that keep it from being removed.',
    }),
    manifest: Type.Unknown({ description: 'The manifest as it is on disk.' }),
  },
  { $id: 'SnapshotDetail' },
);
export type SnapshotDetail = Static<typeof SnapshotDetail>;

/** `POST /v1/snapshots`: builds a template, waits, and answers its snapshot. */
export const CreateSnapshotRequest = closed(
  {
    template: TemplateSource,
    tag: Type.Optional(Tag),
  },
  { $id: 'CreateSnapshotRequest' },
);
export type CreateSnapshotRequest = Static<typeof CreateSnapshotRequest>;

export const VerifyReport = Type.Object(
  {
    id: Type.String(),
    ok: Type.Boolean(),
    problems: Type.Array(Type.String()),
    bytes_read: Type.Optional(Type.Integer()),
  },
  { $id: 'VerifyReport' },
);
export type VerifyReport = Static<typeof VerifyReport>;
