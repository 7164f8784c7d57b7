/** Loads the CLI in one file, with the code that V8 kept of an earlier run where this Node can take it. */
const { readFileSync, renameSync, writeFileSync } = require('node:fs');
const { Module, createRequire } = require('node:module');
const { dirname, join } = require('node:path');
const { Script, constants } = require('node:vm');

const filename = join(__dirname, '../dist/bundle.cjs');
const cache = join(__dirname, '../dist/bundle.code');

/** Bytes of the cache; undefined when there is none. */
function cached() {
  try {
    return readFileSync(cache);
  } catch {
    return undefined;
  }
}

const script = new Script(Module.wrap(readFileSync(filename, 'utf8')), {
  filename,
  cachedData: cached(),
  importModuleDynamically: constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
});
const bundle = { exports: {} };
script.runInThisContext()(bundle.exports, createRequire(filename), bundle, filename, dirname(filename));
module.exports = bundle.exports;

// Asked for by the build, at its end: with the functions that a command has needed by then.
if (process.env.FORKD_WRITE_CODE_CACHE === '1') {
  process.once('exit', () => {
    writeFileSync(`${cache}.new`, script.createCachedData());
    renameSync(`${cache}.new`, cache);
  });
}
