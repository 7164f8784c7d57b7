/**
 * Tests of the C programs under sanitizers: `node native/test.mjs`. Every native/FOLDER/test_*.c is a program of its own; the
 * line "Built with: a.c b.c" in its head comment names the sources of its folder that it is linked with. Then a short fuzz.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { BuildError, build, programs, told } from './build.mjs';

const native = dirname(fileURLToPath(import.meta.url));
const FUZZ_SECONDS = 3;

const bases = { agent: programs['forkd-agent-host'], shim: programs['forkd-shim-asan'] };

await told(async () => {
  for (const [folder, base] of Object.entries(bases)) {
    for (const source of readdirSync(join(native, folder)).filter((n) => /^test_.*\.c$/.test(n))) {
      const sources = /Built with: ([a-z_. ]+)/.exec(readFileSync(join(native, folder, source), 'utf8'))?.[1];
      if (sources === undefined) {
        console.log(`native/${folder}/${source}: not run, its head has no line "Built with: a.c b.c"`);
        continue;
      }
      const linked = sources.trim().split(/ +/);
      const name = `${folder}-${source.replace(/\.c$/, '').replaceAll('_', '-')}`;
      await build(name, { ...base, only: /^$/, extra: [source, ...linked] });
      check(name, spawnSync(join(dirname(native), 'build', 'native', name), { stdio: 'inherit' }));
    }
  }
  const fuzz = [join(native, 'fuzz.mjs'), String(FUZZ_SECONDS)];
  check('the fuzz', spawnSync(process.execPath, fuzz, { stdio: 'inherit' }));
});

function check(what, result) {
  if (result.status !== 0)
    throw new BuildError(`${what} failed (${result.signal ?? `exit ${result.status}`})`);
}
