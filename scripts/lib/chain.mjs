/** Set-up and build, and what comes after them. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { build } from '../build/main.mjs';
import { setup } from '../setup/main.mjs';
import { root } from './paths.mjs';
import { reportFailure, run } from './run.mjs';

/**
 * @param {readonly string[]} args for `forkd quickstart`
 * @returns {Promise<number>} exit code
 */
export function quickstart(args) {
  return reportFailure(async () => {
    await setup();
    await build();
    return run(process.execPath, [join(root, 'packages/cli/bin/forkd.cjs'), 'quickstart', ...args]);
  });
}

/**
 * @param {readonly string[]} args for the bench
 * @returns {Promise<number>} exit code
 */
export function bench(args) {
  return reportFailure(async () => {
    await setup();
    await build();
    return run(process.execPath, ['--import', 'tsx', join(root, 'bench/main.ts'), ...args], { cwd: root });
  });
}

/**
 * @param {readonly string[]} args what the parity suite runs on, such as `qemu+kvm`
 * @returns {Promise<number>} exit code
 */
export function parity(args) {
  return reportFailure(async () => {
    await setup();
    await build();
    const { bundleParity, parityProgram } = await import('../../test/parity/bundle.mjs');
    await bundleParity();
    const on = args.some((arg) => arg.includes('+')) ? [] : ['qemu+tcg'];
    return run(process.execPath, [parityProgram, ...args, ...on], { cwd: root });
  });
}

/**
 * @param {readonly string[]} args for the parity suite
 * @returns {Promise<number>} exit code
 */
export function kvm(args) {
  return reportFailure(async () => {
    await setup();
    await build();
    const { testKvm } = await import('../../test/rig/kvm.mjs');
    return testKvm(args);
  });
}

/**
 * @param {readonly string[]} args for vitest; default: unit tests and tests over microVMs
 * @returns {Promise<number>} exit code
 */
export function test(args) {
  return reportFailure(async () => {
    await setup();
    await build();
    // The C programs first, so that the runner's summary is the last thing printed.
    const native = join(root, 'native/test.mjs');
    if (existsSync(native)) {
      console.log('> node native/test.mjs');
      const code = await run(process.execPath, [native], { cwd: root });
      if (code !== 0) return code;
    }
    const projects = args.some((arg) => arg.startsWith('--project'))
      ? []
      : ['unit', 'agent', 'vm', 'python', 'leftovers'].flatMap((name) => ['--project', name]);
    const vitest = join(root, 'node_modules/vitest/vitest.mjs');
    return run(process.execPath, [vitest, 'run', ...projects, ...args], { cwd: root });
  });
}

/**
 * @param {readonly string[]} args for vitest
 * @returns {Promise<number>} exit code
 */
export function faults(args) {
  return reportFailure(async () => {
    await setup();
    await build();
    const vitest = join(root, 'node_modules/vitest/vitest.mjs');
    return run(process.execPath, [vitest, 'run', '--project', 'faults', ...args], { cwd: root });
  });
}
