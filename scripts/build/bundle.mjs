/**
 * Packs the CLI, and the daemon, with what each imports into one file: they then start three to four times as fast as from some 600. The
 * files stay, for whoever develops, and what is in bin takes whichever is newer.
 */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import { root } from '../lib/paths.mjs';

/** One program, from its main.js to a file beside that: what is found relative to the one is found from the other as well. */
function bundle(name, file, options) {
  const dist = join(root, 'packages', name, 'dist');
  return build({
    entryPoints: [join(dist, 'main.js')],
    outfile: join(dist, file),
    bundle: true,
    platform: 'node',
    target: 'node20',
    minifyWhitespace: true,
    minifySyntax: true,
    keepNames: true,
    legalComments: 'inline',
    logLevel: 'error',
    ...options,
  });
}

/** Of undici, what the SDK uses: its index also loads fetch, cookies, caches and mocks, a third of a command's start. */
const slimUndici = {
  name: 'slim-undici',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^undici$/ }, () => ({ path: 'undici', namespace: 'slim-undici' }));
    onLoad({ filter: /.*/, namespace: 'slim-undici' }, () => ({
      contents: `
        import Dispatcher from 'undici/lib/dispatcher/dispatcher.js';
        import request from 'undici/lib/api/api-request.js';
        Dispatcher.prototype.request = request;
        export { default as Pool } from 'undici/lib/dispatcher/pool.js';`,
      resolveDir: root,
    }));
  },
};

// As CommonJS, which V8 can be given with its own form of it.
await bundle('cli', 'bundle.cjs', {
  format: 'cjs',
  plugins: [slimUndici],
  banner: { js: "const bundleUrl = require('node:url').pathToFileURL(__filename).href;" },
  define: { 'import.meta.url': 'bundleUrl' },
});
await bundle('controller', 'bundle.js', {
  format: 'esm',
  // It loads its native part by path.
  external: ['libsql'],
  // Packages in CommonJS call require().
  banner: {
    js: "import { createRequire as forkdRequire } from 'node:module'; const require = forkdRequire(import.meta.url);",
  },
});

// V8's own form of the CLI, of the Node that builds. Another one ignores it and compiles anew.
await promisify(execFile)(process.execPath, [join(root, 'packages/cli/bin/forkd.cjs'), '--version'], {
  env: { ...process.env, FORKD_WRITE_CODE_CACHE: '1' },
});
