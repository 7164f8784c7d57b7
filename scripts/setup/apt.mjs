/** Installing missing packages with apt: the only thing of the set-up that needs root. */
import { ask, Failure, run } from '../lib/run.mjs';

const options = ['-o', 'DPkg::Lock::Timeout=300'];

/**
 * The privileged commands that `packages` take, in order, without what makes them privileged.
 *
 * @param {readonly string[]} packages
 * @returns {string[][]}
 */
export function aptCommands(packages) {
  return [
    ['apt-get', ...options, 'update'],
    ['apt-get', ...options, 'install', '-y', '--no-install-recommends', ...packages],
  ];
}

/** The one line that an administrator runs by hand. */
export function aptLine(packages) {
  const [update, install] = aptCommands(packages).map((command) => command.join(' '));
  return `sudo sh -c '${update}; DEBIAN_FRONTEND=noninteractive ${install}'`;
}

/**
 * How this user gets to run apt: an empty prefix for root, `sudo -n` where it works without a question, else null.
 *
 * @returns {string[] | null}
 */
export function privilege() {
  if (process.getuid() === 0) return [];
  return ask('sudo', ['-n', 'true']).ok ? ['sudo', '-n'] : null;
}

/**
 * Installs `packages`.
 *
 * @param {readonly string[]} packages
 * @param {readonly string[]} prefix see {@link privilege}
 */
export async function installPackages(packages, prefix) {
  const [update, install] = aptCommands(packages);
  const updated = await privileged(prefix, update);
  if (updated !== 0) {
    // Often a third-party source that is down: it matters only if our packages cannot be had without it.
    console.log(`apt-get update failed (exit ${updated}); going on with the package lists that are there`);
  }
  // Root is not needed to simulate.
  const resolves = ask('apt-get', ['install', '-s', '-y', '--no-install-recommends', ...packages]);
  if (!resolves.ok) {
    const reason = lastLines(resolves.stderr || resolves.stdout);
    throw new Failure(
      `apt cannot resolve ${packages.join(' ')}: ${reason}`,
      'check the sources in /etc/apt and the network (a proxy?), then run "apt-get update" until it succeeds',
    );
  }
  const installed = await privileged(prefix, install);
  if (installed !== 0) {
    throw new Failure(`apt-get install failed (exit ${installed})`, `to see it whole: ${aptLine(packages)}`);
  }
}

function privileged(prefix, command) {
  // sudo drops the environment, so `env` sets what apt must see.
  const full = [...prefix, 'env', 'DEBIAN_FRONTEND=noninteractive', 'NEEDRESTART_MODE=l', ...command];
  console.log(`> ${[...prefix, ...command].join(' ')}`);
  return run(full[0], full.slice(1));
}

function lastLines(text) {
  return text.trim().split('\n').slice(-3).join(' ');
}
