/**
 * `@forkd/engine`: the fork engine as a library: machines, snapshots, templates, the agent's client.
 *
 * @packageDocumentation
 */
export * from './agent/index.js';
export { type ErrorCode, engineErrorCodes } from './error-codes.js';
export { EngineError, messageOf } from './errors.js';
export type { VmmExit } from './shim/index.js';
export * from './snapshot/index.js';
export * from './types.js';
