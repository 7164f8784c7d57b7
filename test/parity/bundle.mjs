/** The suite and the client it uses as one file: it starts many times as fast where Node itself is emulated. */
import { join } from 'node:path';
import { build } from 'esbuild';
import { root } from '../../scripts/lib/paths.mjs';

/** Relative to the checkout. */
export const parityProgram = 'build/parity.mjs';

/** What gathers its results from outside, relative to the checkout. */
const parityResults = 'build/parity-results.mjs';

export async function bundleParity() {
  await bundle('main.ts', parityProgram);
}

/** @returns {Promise<typeof import('./results.ts')>} */
export async function bundledResults() {
  await bundle('results.ts', parityResults);
  return await import(join(root, parityResults));
}

async function bundle(source, to) {
  await build({
    entryPoints: [join(root, 'test/parity', source)],
    outfile: join(root, to),
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    logLevel: 'error',
    // Packages in CommonJS call require().
    banner: {
      js: "import { createRequire as forkdRequire } from 'node:module'; const require = forkdRequire(import.meta.url);",
    },
  });
}
