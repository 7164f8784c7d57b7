// `npm run quickstart`: set-up, build, then `forkd quickstart`, which gets the arguments.
import { start } from './lib/start.mjs';

start(() => import('./lib/chain.mjs').then((chain) => chain.quickstart(process.argv.slice(2))));
