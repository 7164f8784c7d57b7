/** Snapshots on disk. */
export { MANIFEST_FORMAT, MachinePin, Manifest } from './manifest.js';
