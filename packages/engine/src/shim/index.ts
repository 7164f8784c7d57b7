/** The shim: parent of one VMM, from the host's side. */
export type * from './types.js';
