/** What a fork takes and answers. */
import type { ForkFailure } from '@forkd/api';
import type { Sandbox } from './sandbox.js';

export interface ForkOptions {
  /** Tag or id of the snapshot. */
  snapshot: string;
  /** Number of children, 1 to 1000. Default 1. */
  n?: number;
  /** Added to the environment of every process in the children. */
  env?: Record<string, string>;
  /** Free names and values; readable in the guest at /run/forkd/metadata.json. */
  metadata?: Record<string, string>;
  /** Children are called PREFIX-0, PREFIX-1, ...; default: the id of each. */
  hostnamePrefix?: string;
  signal?: AbortSignal;
}

/** What came of a fork: failed children do not fail their siblings. */
export interface ForkOutcome {
  sandboxes: Sandbox[];
  failures: ForkFailure[];
}
