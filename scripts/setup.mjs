// `node scripts/setup.mjs [--plan]`: installs what forkd needs. See setup/main.mjs.
import { start } from './lib/start.mjs';

start(() => import('./setup/main.mjs').then((setup) => setup.main(process.argv.slice(2))));
