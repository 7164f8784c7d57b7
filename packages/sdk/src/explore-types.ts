/** What an exploration takes and answers. */
import type { Command } from './command.js';
import type { ForkdError } from './errors.js';
import type { ExecExit } from './exec-stream.js';
import type { ForkOptions, ForkOutcome } from './fork.js';
import type { Sandbox } from './sandbox.js';
import type { Snapshots } from './snapshots.js';

/** What an exploration needs of its client. */
export interface ExploreClient {
  readonly snapshots: Snapshots;
  sandbox(id: string): Sandbox;
  fork(options: ForkOptions): Promise<ForkOutcome>;
}

/** What one child gets. */
export interface ExploreInput {
  /** Added to the environment of the command. */
  env?: Record<string, string>;
  /** Given to the command, then EOF. Default: /dev/null. */
  stdin?: string | Uint8Array;
}

/** `best`: the child with the highest score, without `score` the first that succeeded. `ok`: all that succeeded. */
export const exploreKeeps = ['best', 'ok', 'none'] as const;
export type ExploreKeep = (typeof exploreKeeps)[number];

export interface ExploreOptions {
  /** A sandbox, which is branched first, or the tag or id of a snapshot. */
  from: string;
  /** Number of children, 1 to 1000. Default: as many as `each` has. */
  n?: number | undefined;
  /** What each child gets: one entry a child. */
  each?: readonly ExploreInput[] | undefined;
  command: Command;
  cwd?: string | undefined;
  user?: string | undefined;
  /** Seconds until a command and all it started are killed. Default: none. */
  timeoutSecs?: number | undefined;
  /** Run in each child whose command exited 0; the number on its last line of output is the child's score. */
  score?: Command | undefined;
  /** Cancel the others as soon as one has exited 0. Default false. */
  firstSuccess?: boolean | undefined;
  /** Which children live on. Default `none`. */
  keep?: ExploreKeep | undefined;
  /** Called with output as it comes. */
  onOutput?: ((index: number, stream: 'stdout' | 'stderr', bytes: Buffer) => void) | undefined;
  /** Cancels all: children are removed, and the results end with an error. */
  signal?: AbortSignal | undefined;
}

/** How one child ended. */
export interface ExploreResult {
  /** Which child, from 0. */
  index: number;
  /** Undefined when it could not be started. */
  sandbox: Sandbox | undefined;
  /** `ok`: exited 0. `failed`: ended otherwise. `cancelled`: another one succeeded first. `error`: could not be run; see `error`. */
  state: 'ok' | 'failed' | 'cancelled' | 'error';
  exit: ExecExit | undefined;
  exitCode: number | undefined;
  /** From the start of the command. */
  durationMs: number;
  /** Memory of the host that the child alone used at the end. */
  memoryBytes: number | undefined;
  /** Null when its score command printed no number. */
  score: number | null | undefined;
  error: ForkdError | undefined;
}
