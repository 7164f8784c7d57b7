import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Root of the checkout. */
export const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
export const lockFile = join(root, 'build', 'setup.lock');
