import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { EngineError, messageOf } from '../errors.js';
import { hostFault } from '../host/fault.js';
import { decodeAbilities } from './protocol.js';
import type { ShimAbilities } from './types.js';

const PROBE_MS = 5000;

/**
 * What a shim may do on this host, tried once on a throw-away child. Hand it to every `startShim`.
 *
 * @param binary path of the shim's program
 * @throws EngineError host_unfit when it cannot be run
 */
export async function probeAbilities(binary: string): Promise<ShimAbilities> {
  try {
    const { stdout } = await promisify(execFile)(binary, ['--probe'], {
      timeout: PROBE_MS,
      env: { LC_ALL: 'C' },
    });
    const [, bits, reason] = /^(\d+) (.*)\n$/.exec(stdout) ?? [];
    if (bits === undefined) throw new Error(`it printed ${JSON.stringify(stdout)}`);
    return decodeAbilities(Number(bits), reason ?? '');
  } catch (error) {
    const fault = hostFault(error, `cannot probe with the shim ${binary}`);
    if (fault) throw fault;
    throw new EngineError('host_unfit', `cannot probe with the shim ${binary}: ${messageOf(error)}`, {
      remedy: 'Build it: npm run build',
      cause: error,
    });
  }
}
