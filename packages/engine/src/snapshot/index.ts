/** Snapshots on disk. */

export { type Chain, type DiskLink, MOST_LINKS, resolveChain, wantsFlattening } from './chain.js';
export { incompatibility } from './compatibility.js';
export { freedBytes } from './freed.js';
export { BranchOrigin, filesOf, MANIFEST_FORMAT, MachinePin, Manifest, standsAlone } from './manifest.js';
export { SnapshotStore } from './store.js';
export { snapshotSizes, verifySnapshot } from './verify.js';
