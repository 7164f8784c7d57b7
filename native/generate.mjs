/**
 * Makes the C headers of both protocols from packages/wire: `node native/generate.mjs [--check]`. Build packages/wire first.
 * With `--check` nothing is written: a header that differs from its source is an error.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const native = dirname(fileURLToPath(import.meta.url));
const dist = join(dirname(native), 'packages', 'wire', 'dist');
const check = process.argv.includes('--check');

const headers = [
  { file: join(native, 'agent', 'protocol.gen.h'), module: 'c-header.js', maker: 'agentHeader' },
  { file: join(native, 'shim', 'protocol.gen.h'), module: 'shim.js', maker: 'shimHeader' },
];

for (const { file, module, maker } of headers) {
  const source = join(dist, module);
  if (!existsSync(source)) {
    console.error(`generate: ${source} is missing: run npx tsc -b packages/wire first`);
    process.exitCode = 1;
    continue;
  }
  const text = (await import(pathToFileURL(source).href))[maker]();
  const old = existsSync(file) ? readFileSync(file, 'utf8') : '';
  if (text === old) continue;
  if (check) {
    console.error(`generate: ${file} is not what packages/wire says: run node native/generate.mjs`);
    process.exitCode = 1;
  } else {
    writeFileSync(file, text);
    console.log(`generated ${file}`);
  }
}
