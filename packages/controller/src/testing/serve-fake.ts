/** A real daemon over the engine for tests, as a process: `tsx serve-fake.ts HOME [BIND]`. Says "ready" when it answers. */
import { serve } from '../daemon.js';
import { silentLog } from '../log.js';
import { fakeEngine } from './fake-engine.js';

const [home, bind = 'none'] = process.argv.slice(2) as [string, string?];
const daemon = await serve({
  home,
  bind,
  nativeDir: '/nonexistent',
  log: silentLog(),
  openEngine: async (options) => fakeEngine(options),
});
process.on('SIGTERM', () => void daemon.close());
process.stdout.write(`ready ${daemon.tcp}\n`);
await daemon.closed;
process.exit(0);
