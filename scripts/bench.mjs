// `npm run bench`: set-up, build, then the measurements, which get the arguments.
import { start } from './lib/start.mjs';

start(() => import('./lib/chain.mjs').then((chain) => chain.bench(process.argv.slice(2))));
