#!/usr/bin/env node
// CommonJS: Node starts sooner when it need not set up its loader of ES modules. Syntax of 2015 only, so that an old Node gets as far as
// being told so.
const { statSync } = require('node:fs');
const { join } = require('node:path');

const found = process.versions.node.split('.').map(Number);
const isOld = found[0] < 20 || (found[0] === 20 && (found[1] < 18 || (found[1] === 18 && found[2] < 1)));
if (isOld) {
  console.error(`error: Node 20.18.1 or newer needed, found ${process.versions.node}`);
  process.exitCode = 1;
} else if (isBundleNewest()) {
  require('./bundled.cjs').run(process.argv);
} else {
  import('../dist/main.js').then(
    (main) => main.run(process.argv),
    (error) => {
      if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error;
      console.error(`error: forkd is not built: ${error.message}`);
      console.error('hint: run "npm run setup && npm run build" in the checkout of forkd');
      process.exitCode = 1;
    },
  );
}

/** All in one file starts faster; but not when a part of it has been compiled since. */
function isBundleNewest() {
  const time = (file) => statSync(join(__dirname, file)).mtimeMs;
  try {
    const bundled = time('../dist/bundle.cjs');
    return ['api', 'sdk', 'cli'].every((name) => time(`../../${name}/dist/.tsbuildinfo`) <= bundled);
  } catch (_) {
    return false;
  }
}
