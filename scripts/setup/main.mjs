/**
 * Sets up everything that building, testing and running forkd takes. Fast when nothing is to be done.
 *
 * Options: `--plan` prints every privileged action and does nothing.
 */

import { withLock } from '../lib/lock.mjs';
import { lockFile } from '../lib/paths.mjs';
import { Failure, reportFailure } from '../lib/run.mjs';
import { aptCommands, aptLine, installPackages, privilege } from './apt.mjs';
import { checkHost } from './host.mjs';
import { installNpm, npmIsDone } from './npm.mjs';
import { missingPackages } from './packages.mjs';

/**
 * @param {readonly string[]} args
 * @returns {Promise<number>} exit code
 */
export function main(args) {
  return reportFailure(async () => {
    const unknown = args.find((arg) => arg !== '--plan');
    if (unknown !== undefined)
      throw new Failure(`unknown argument ${JSON.stringify(unknown)}`, 'usage: setup.mjs [--plan]');
    if (args.includes('--plan')) return plan();
    await setup();
    return 0;
  });
}

/** Does what is not done yet. */
export async function setup() {
  const packages = missingPackages(process.getuid() === 0);
  const npm = !npmIsDone();
  if (packages.missing.length === 0 && !npm) return;
  checkHost({ installing: packages.missing.length > 0, npm });
  // Before the long npm step: who has to type a password learns it at once.
  const prefix = packages.missing.length > 0 ? mayInstall(packages) : [];
  await withLock(lockFile, 900, async () => {
    // Another set-up may have done it while this one waited.
    const { missing } = missingPackages(process.getuid() === 0);
    if (missing.length > 0) await installPackages(missing, prefix);
    if (!npmIsDone()) await installNpm();
  });
}

function plan() {
  const { apt, missing } = missingPackages(process.getuid() === 0);
  if (missing.length === 0) {
    console.log('no privileged action: every package is installed');
  } else if (!apt) {
    console.log(`no privileged action: apt is not here. To be installed by hand: ${missing.join(' ')}`);
  } else {
    console.log('privileged actions:');
    for (const command of aptCommands(missing)) console.log(`  ${command.join(' ')}`);
  }
  return 0;
}

function mayInstall({ apt, missing }) {
  if (!apt) {
    throw new Failure(
      `missing: ${missing.join(' ')} (names of Debian packages)`,
      'this set-up installs with apt only; install their equivalents with the package manager of this system',
    );
  }
  const prefix = privilege();
  if (prefix === null) {
    throw new Failure(
      `packages are missing, and this user may not install them: ${missing.join(' ')}`,
      `run once: ${aptLine(missing)}`,
    );
  }
  return prefix;
}
