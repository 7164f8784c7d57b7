/** `npm run test:kvm`: the parity suite over kvm, on this host where a boot proves its kvm, else in the rig. */
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { root } from '../../scripts/lib/paths.mjs';
import { run } from '../../scripts/lib/run.mjs';
import { bundleParity, parityProgram } from '../parity/bundle.mjs';
import { engine, seedHome } from './parts.mjs';

/** All of it, on 2 cores, s; one column less takes less. */
const SECONDS_PER_COLUMN = 900;

/** V8's guard of its code pages costs a third of all time where page tables are emulated. */
const NODE_FLAGS = ['--no-write-protect-code-memory'];

/**
 * @param {readonly string[]} args for the suite, such as `--only branch`
 * @returns {Promise<number>} exit code
 */
export async function testKvm(args) {
  await bundleParity();
  const columns = ['qemu+kvm', ...(process.env.FIRECRACKER_BIN ? ['firecracker+kvm'] : [])];
  const secs = ['--secs', String(SECONDS_PER_COLUMN * columns.length)];
  const suite = [parityProgram, ...secs, ...args, ...columns];
  const problem = await hostProblem();
  if (problem === null) {
    console.log(`kvm works on this host: ${columns.join(', ')} run on it`);
    return await run(process.execPath, suite, { cwd: root });
  }
  console.log(`${columns.join(', ')} run in the rig, since ${problem}`);
  return await run(process.execPath, [join(root, 'test/rig/run.mjs'), '--', 'node', ...NODE_FLAGS, ...suite]);
}

/** Why kvm cannot be used on this host, by a boot of our guest; null where it can. */
async function hostProblem() {
  const { openEngine } = await engine('index.js');
  const seed = await seedHome((text) => console.error(text));
  const home = mkdtempSync(join(tmpdir(), 'fk-'));
  cpSync(join(seed, 'cache'), join(home, 'cache'), { recursive: true, preserveTimestamps: true });
  const opened = await openEngine({ home, nativeDir: join(root, 'build/native') });
  try {
    const { accelerator, reason } = await opened.choice();
    return accelerator === 'kvm' ? null : reason;
  } finally {
    await opened[Symbol.asyncDispose]();
    rmSync(home, { recursive: true, force: true });
  }
}
