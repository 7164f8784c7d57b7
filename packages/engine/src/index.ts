/**
 * `@forkd/engine`: the fork engine as a library: machines, snapshots, templates, the agent's client.
 *
 * @packageDocumentation
 */
export * from './agent/index.js';
export { emptyQcow2 as emptyOverlay } from './disk/qcow2.js';
export { openEngine } from './engine.js';
export { type ErrorCode, engineErrorCodes } from './error-codes.js';
export { EngineError, messageOf } from './errors.js';
export { hostFault } from './host/fault.js';
export { newId } from './ids.js';
export { childArgv as childArguments } from './qemu/argv.js';
export { findQemu, type QemuBinary } from './qemu/binary.js';
export { describeFault, type VmmExit } from './shim/index.js';
export { MANIFEST_FORMAT, MachinePin, Manifest, standsAlone } from './snapshot/index.js';
export * from './types.js';
