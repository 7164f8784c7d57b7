// `npm run test:faults`: set-up, build, then the tests that break the host under a daemon. Arguments go to vitest.
import { start } from './lib/start.mjs';

start(() => import('./lib/chain.mjs').then((chain) => chain.faults(process.argv.slice(2))));
