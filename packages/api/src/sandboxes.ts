/** Sandboxes: microVMs that continue from a snapshot. */
import Type, { type Static } from 'typebox';
import { closed, Env, SnapshotRef } from './common.js';
import { ErrorBody } from './errors.js';

/** Largest number of children of one request. */
export const maxChildren = 1000;

/**
 * `forking`: being made. `running`. `stopping`: being removed. `exited`: its VMM ended by itself; kept, with reason and
 * last words, until it is removed. `unreachable`: its VMM runs but cannot be reached since the daemon started.
 */
export const sandboxStates = ['forking', 'running', 'stopping', 'exited', 'unreachable'] as const;
export type SandboxState = (typeof sandboxStates)[number];

export const ForkTimings = Type.Object({
  spawn_ms: Type.Number({ description: 'Shim and VMM started, monitor greeted.' }),
  graft_ms: Type.Number({ description: 'Memory of the snapshot mapped.' }),
  load_ms: Type.Number({ description: 'Device state loaded.' }),
  hello_ms: Type.Number({ description: 'Resumed, and told who it is.' }),
  total_ms: Type.Number(),
});
export type ForkTimings = Static<typeof ForkTimings>;

export const ExitInfo = Type.Object({
  kind: Type.Union([Type.Literal('exited'), Type.Literal('signaled'), Type.Literal('unknown')]),
  code: Type.Optional(Type.Integer()),
  signal: Type.Optional(Type.String()),
  reason: Type.String({ description: 'For people.' }),
  last_words: Type.String({ description: 'End of what the VMM wrote to its standard error.' }),
  at_unix: Type.Integer(),
});
export type ExitInfo = Static<typeof ExitInfo>;

export const SandboxInfo = Type.Object(
  {
    id: Type.String(),
    aliases: Type.Optional(
      Type.Array(Type.String(), { description: 'Ids of sandboxes whose place it has taken: they mean it.' }),
    ),
    snapshot_tag: Type.String({ description: 'The tag or id that was asked for when it was forked.' }),
    snapshot_id: Type.String(),
    state: Type.Enum(sandboxStates),
    created_at_unix: Type.Integer(),
    pid: Type.Union([Type.Integer(), Type.Null()], { description: 'Process id of its VMM on the host.' }),
    engine: Type.String(),
    accelerator: Type.String(),
    memory_mib: Type.Integer({ description: 'Memory that the guest sees.' }),
    vcpus: Type.Integer(),
    generation: Type.Union([Type.String(), Type.Null()], {
      description: '128 bits, hex; differs in every fork.',
    }),
    hostname: Type.String(),
    metadata: Type.Record(Type.String(), Type.String()),
    timings: Type.Optional(ForkTimings),
    memory_bytes: Type.Optional(
      Type.Integer({
        description:
          'Memory of the host that this sandbox alone uses; answered for one sandbox or on ?memory=true.',
      }),
    ),
    exit: Type.Optional(ExitInfo),
    // forkd v1 has these; kept so that its clients can parse an answer.
    netns: Type.Null(),
    guest_addr: Type.String(),
    memory_limit_mib: Type.Null(),
    has_branched: Type.Boolean(),
  },
  { $id: 'SandboxInfo' },
);
export type SandboxInfo = Static<typeof SandboxInfo>;

export const ForkRequest = closed(
  {
    snapshot_tag: SnapshotRef,
    n: Type.Optional(
      Type.Integer({ minimum: 1, maximum: maxChildren, description: 'Number of children, default 1.' }),
    ),
    env: Type.Optional(Env),
    metadata: Type.Optional(
      Type.Record(Type.String({ pattern: '^[^\\u0000]{1,128}$' }), Type.String({ maxLength: 4096 }), {
        maxProperties: 64,
        additionalProperties: false,
      }),
    ),
    hostname_prefix: Type.Optional(
      Type.String({
        pattern: '^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$',
        description: 'Children are called PREFIX-0, PREFIX-1, ...; default: the id of each.',
      }),
    ),
    report: Type.Optional(Type.Boolean({ description: 'Answer {sandboxes, failures} instead of an array.' })),
    // Of forkd v1. Every child here can be branched live; what does not apply is refused by name.
    per_child_netns: Type.Optional(Type.Boolean()),
    memory_limit_mib: Type.Optional(Type.Union([Type.Integer({ minimum: 1 }), Type.Null()])),
    prewarm: Type.Optional(Type.Boolean()),
    live_fork: Type.Optional(Type.Boolean()),
    hugepages: Type.Optional(Type.Boolean()),
  },
  { $id: 'ForkRequest' },
);
export type ForkRequest = Static<typeof ForkRequest>;

export const ForkFailure = Type.Object({
  index: Type.Integer({ description: 'Which child, from 0.' }),
  id: Type.String({ description: 'The id that it would have had.' }),
  error: ErrorBody,
});
export type ForkFailure = Static<typeof ForkFailure>;

/** Answer of a fork with `report: true`: 201 when all children run, 207 when some failed. */
export const ForkReport = Type.Object(
  { sandboxes: Type.Array(SandboxInfo), failures: Type.Array(ForkFailure) },
  { $id: 'ForkReport' },
);
export type ForkReport = Static<typeof ForkReport>;

/** Header of the array form that says how many children failed (status 207). */
export const failedChildrenHeader = 'forkd-failed-children';

export const PingReply = Type.Object(
  {
    pong: Type.Literal(true),
    pid: Type.Integer({ description: 'Process id of the agent in the guest: 1.' }),
    round_trip_ms: Type.Number({ description: 'Daemon to agent and back.' }),
  },
  { $id: 'PingReply' },
);
export type PingReply = Static<typeof PingReply>;

export const ProcessEntry = Type.Object({
  handle: Type.Integer({ description: 'Names the process for attach.' }),
  pid: Type.Integer(),
  role: Type.String(),
  label: Type.Optional(Type.String()),
  command: Type.Array(Type.String()),
  running: Type.Boolean(),
  pty: Type.Boolean(),
});
export const ProcessList = Type.Array(ProcessEntry, { $id: 'ProcessList' });
export type ProcessEntry = Static<typeof ProcessEntry>;

export const LogsReply = Type.Object(
  {
    console: Type.String({ description: 'End of the serial console of the guest.' }),
    vmm: Type.String({ description: 'End of what the VMM wrote to its standard error.' }),
  },
  { $id: 'LogsReply' },
);
export type LogsReply = Static<typeof LogsReply>;

/** What the guest says of itself; numbers of its kernel. */
export const GuestMetrics = Type.Record(Type.String(), Type.Unknown(), { $id: 'GuestMetrics' });
export type GuestMetrics = Static<typeof GuestMetrics>;
