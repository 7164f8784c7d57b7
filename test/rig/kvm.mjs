/** `npm run test:kvm`: the parity suite over kvm, on this host where a boot proves its kvm, else in the rig. */
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { root } from '../../scripts/lib/paths.mjs';
import { Failure, run } from '../../scripts/lib/run.mjs';
import { bundleParity, parityProgram } from '../parity/bundle.mjs';
import { engine, seedHome } from './parts.mjs';
import { suiteInRig } from './suite.mjs';

/** At most, on 2 cores that others use as well, s; one column less takes less. */
const SECONDS_PER_COLUMN = 1320;

/**
 * @param {readonly string[]} all for the suite, such as `--only branch`; columns, such as `firecracker+kvm`, in the place of all that there are
 * @returns {Promise<number>} exit code
 */
export async function testKvm(all) {
  await bundleParity();
  const isColumn = (arg) => /^\w+\+kvm$/.test(arg);
  const args = all.filter((arg) => !isColumn(arg));
  const there = ['qemu+kvm', ...(process.env.FIRECRACKER_BIN ? ['firecracker+kvm'] : [])];
  const columns = args.length === all.length ? there : all.filter(isColumn);
  const { seconds, rest } = takeSeconds(args, SECONDS_PER_COLUMN * columns.length);
  const problem = await hostProblem();
  if (problem === null) {
    console.log(`kvm works on this host: ${columns.join(', ')} run on it`);
    const suite = [parityProgram, '--secs', String(seconds), ...rest, ...columns];
    return await run(process.execPath, suite, { cwd: root });
  }
  console.log(`${columns.join(', ')} run in the rig, since ${problem}`);
  return await suiteInRig(columns, rest, seconds);
}

/** `--secs N`, taken out of the arguments: in the rig it bounds what comes after a crash as well. */
function takeSeconds(args, otherwise) {
  const at = args.indexOf('--secs');
  if (at === -1) return { seconds: otherwise, rest: args };
  const seconds = Number(args[at + 1]);
  if (!Number.isInteger(seconds) || seconds < 1)
    throw new Failure(`--secs ${JSON.stringify(args[at + 1])} is not a whole number from 1`);
  return { seconds, rest: args.toSpliced(at, 2) };
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
