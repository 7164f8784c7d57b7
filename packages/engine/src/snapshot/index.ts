/** Snapshots on disk. */
export { incompatibility } from './compatibility.js';
export { MANIFEST_FORMAT, MachinePin, Manifest } from './manifest.js';
export { SnapshotStore } from './store.js';
export { snapshotSizes, verifySnapshot } from './verify.js';
