/**
 * Packs the CLI and what it imports into one file: a command then starts three times as fast as from some 600 files. The files
 * stay, for whoever develops, and bin/forkd.mjs takes whichever is newer.
 */
import { join } from 'node:path';
import { build } from 'esbuild';
import { root } from '../lib/paths.mjs';

const dist = join(root, 'packages/cli/dist');

await build({
  entryPoints: [join(dist, 'main.js')],
  // Beside the entry, so that what is found relative to it is found from here as well.
  outfile: join(dist, 'bundle.js'),
  bundle: true,
  platform: 'node',
  format: 'esm',
  target: 'node20',
  minifyWhitespace: true,
  minifySyntax: true,
  keepNames: true,
  legalComments: 'inline',
  logLevel: 'warning',
  // Packages in CommonJS call require().
  banner: {
    js: "import { createRequire as forkdRequire } from 'node:module'; const require = forkdRequire(import.meta.url);",
  },
});
