import { fileURLToPath } from 'node:url';

/** The checkout that this code is in: from `src`, from `dist`, and from the daemon's bundle, which lies as deep as these. */
export const checkout = fileURLToPath(new URL('../../..', import.meta.url));
