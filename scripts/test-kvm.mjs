// `npm run test:kvm`: the parity suite over kvm; in the rig where this host's kvm does not work.
import { start } from './lib/start.mjs';

start(() => import('./lib/chain.mjs').then((chain) => chain.kvm(process.argv.slice(2))));
