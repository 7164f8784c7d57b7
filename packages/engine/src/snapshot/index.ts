/** Snapshots on disk. */

export { type Chain, type DiskLink, resolveChain } from './chain.js';
export { incompatibility } from './compatibility.js';
export { BranchOrigin, filesOf, MANIFEST_FORMAT, MachinePin, Manifest } from './manifest.js';
export { SnapshotStore } from './store.js';
export { snapshotSizes, verifySnapshot } from './verify.js';
