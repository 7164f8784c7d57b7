/** The shim: parent of one VMM, from the host's side. */
export { adoptShim } from './adopt.js';
export { describeFault } from './memory-fault.js';
export { probeAbilities } from './probe.js';
export { startShim, startShimAnd } from './start.js';
export type * from './types.js';
