// `npm test`: set-up, build, sanitizer tests of the C programs, then vitest, which gets the arguments.
import { start } from './lib/start.mjs';

start(() => import('./lib/chain.mjs').then((chain) => chain.test(process.argv.slice(2))));
