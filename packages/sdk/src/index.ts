/**
 * `@forkd/sdk`: the TypeScript client of forkd.
 *
 * @example
 * import { Forkd } from '@forkd/sdk';
 * await using client = new Forkd();
 * const { sandboxes: [box] } = await client.fork({ snapshot: 'python' });
 * console.log((await box.eval('1 + 1')).result);
 *
 * @packageDocumentation
 */
export { type AddressOptions, resolveAddress } from './address.js';
export { Forkd, type Sandboxes } from './client.js';
export type { Command, CommandOptions } from './command.js';
export {
  BusyError,
  CancelledError,
  ConflictError,
  clientError,
  errorOfBody,
  FailedError,
  ForkdError,
  InvalidError,
  NotFoundError,
  RefusedError,
  TimeoutError,
  UnauthorizedError,
  UnreachableError,
} from './errors.js';
export type { ExecExit, RemoteProcess } from './exec-stream.js';
export { Exploration } from './explore.js';
export {
  type ExploreInput,
  type ExploreKeep,
  type ExploreOptions,
  type ExploreResult,
  exploreKeeps,
} from './explore-types.js';
export type { ReadFileOptions, SandboxFiles, WriteFileOptions } from './files.js';
export type { ForkOptions, ForkOutcome } from './fork.js';
export {
  type BranchOptions,
  type BranchOutcome,
  type EvalOptions,
  type ExecOptions,
  type RunOptions,
  Sandbox,
} from './sandbox.js';
export type { Snapshots } from './snapshots.js';
export type { BuildOptions, Templates } from './templates.js';
