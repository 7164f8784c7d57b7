// `node scripts/build.mjs`: builds TypeScript and C. Fast when nothing has changed. See build/main.mjs.
import { start } from './lib/start.mjs';

start(() => import('./build/main.mjs').then((build) => build.main(process.argv.slice(2))));
