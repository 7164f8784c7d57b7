import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { EngineError, messageOf } from '../errors.js';
import { hostBootId } from './boot-id.js';

const run = promisify(execFile);

let measured: { bootId: string; khz: Promise<number> } | undefined;

/**
 * Rate of the host's time stamp counter, kHz, measured against CLOCK_MONOTONIC_RAW: tcg's guest TSC ticks at it, which is not the
 * `cpu MHz` of /proc/cpuinfo on every machine (design, section 9). Once per process; takes 50 ms.
 *
 * @param shimBinary the program that can read the counter
 */
export function tscKhz(shimBinary: string): Promise<number> {
  const bootId = hostBootId();
  if (measured?.bootId !== bootId) measured = { bootId, khz: measure(shimBinary) };
  return measured.khz;
}

async function measure(shimBinary: string): Promise<number> {
  const { stdout } = await run(shimBinary, ['--tsc'], { timeout: 10_000 }).catch((error: unknown) => {
    throw new EngineError('host_unfit', `cannot measure the TSC rate: ${messageOf(error)}`, {
      remedy: 'Build the native programs: npm run build',
      cause: error,
    });
  });
  const khz = Number(stdout);
  if (!(khz > 100_000 && khz < 20_000_000))
    throw new EngineError('host_unfit', `the TSC rate of this host makes no sense: ${stdout.trim()} kHz`);
  return khz;
}
