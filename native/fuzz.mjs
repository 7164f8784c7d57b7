/**
 * Runs the fuzz programs of native/agent (fuzz_*.c), each for so many seconds: `node native/fuzz.mjs [SECONDS] [--seed N]`.
 * Default 10 seconds, and a seed of the day, so that every day tries others and each run can be repeated.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { BuildError, build, programs, told } from './build.mjs';

const native = dirname(fileURLToPath(import.meta.url));

function numberOf(text, what) {
  if (!/^\d{1,15}$/.test(text ?? ''))
    throw new BuildError(`${what} is a whole number, got ${JSON.stringify(text)}`);
  return text;
}

await told(async () => {
  const args = process.argv.slice(2);
  const at = args.indexOf('--seed');
  const seed =
    at < 0 ? String(Math.floor(Date.now() / 86_400_000) * 1_000_000) : numberOf(args[at + 1], '--seed');
  if (at >= 0) args.splice(at, 2);
  const seconds = numberOf(args[0] ?? '10', 'SECONDS');
  for (const source of readdirSync(join(native, 'agent')).filter((n) => /^fuzz_.*\.c$/.test(n))) {
    const name = source.replace(/\.c$/, '').replaceAll('_', '-');
    // The frames' fuzzer stands in for what is beyond the session, so that only the session is tried.
    const kept = /^(conn|session|send|slots|fields|ring)\.c$/;
    await build(name, { ...programs['forkd-agent-host'], only: kept, extra: [source] });
    const run = spawnSync(
      join(dirname(native), 'build', 'native', name),
      ['--seconds', seconds, '--seed', seed],
      {
        stdio: 'inherit',
      },
    );
    if (run.status !== 0)
      throw new BuildError(
        `${name} failed (${run.signal ?? `exit ${run.status}`}): the seed above repeats it`,
      );
  }
});
