/** The suite and the client it uses as one file: it starts many times as fast where Node itself is emulated. */
import { join } from 'node:path';
import { build } from 'esbuild';
import { root } from '../../scripts/lib/paths.mjs';

/** Relative to the checkout. */
export const parityProgram = 'build/parity.mjs';

export async function bundleParity() {
  await build({
    entryPoints: [join(root, 'test/parity/main.ts')],
    outfile: join(root, parityProgram),
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
