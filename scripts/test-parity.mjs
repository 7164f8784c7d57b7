// `npm run test:parity -- [ENGINE+ACCELERATOR...]`: the parity suite on this host, by default on qemu+tcg.
import { start } from './lib/start.mjs';

start(() => import('./lib/chain.mjs').then((chain) => chain.parity(process.argv.slice(2))));
