import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { EngineError, messageOf } from '../errors.js';
import { sha256File } from '../hash.js';
import { programFinder } from '../vmm/program.js';
import type { EngineBinary } from '../vmm/types.js';
import { findJailer, type Jailer } from './jail.js';

const run = promisify(execFile);

/** Oldest version that is supported. */
const OLDEST = [1, 10] as const;

const REMEDY =
  'Put a release of Firecracker (1.10 or newer) on PATH as "firecracker", or name its file in FORKD_FIRECRACKER.';

/** A Firecracker that is fit to run sandboxes. */
export interface FirecrackerBinary extends EngineBinary {
  /** Version of the state files that it writes, such as 8.0.0. */
  snapshotVersion: string;
  /** What puts it into a jail, or why nothing does. */
  jailer: Jailer;
}

/**
 * Finds Firecracker: `FORKD_FIRECRACKER`, else `FIRECRACKER_BIN`, else `firecracker` of PATH. Remembers what it found until the file changes.
 *
 * @throws EngineError host_unfit when there is none, or it is older than 1.10
 */
export const findFirecracker = programFinder<FirecrackerBinary>({
  title: 'Firecracker',
  wanted: () => process.env.FORKD_FIRECRACKER ?? process.env.FIRECRACKER_BIN ?? 'firecracker',
  remedy: REMEDY,
  async inspect(path) {
    const [version, snapshotVersion, sha256, jailer] = await Promise.all([
      ask(path, '--version', /^Firecracker v(\d+\.\d+\.\d+\S*)/m),
      ask(path, '--snapshot-version', /^v?(\d+\.\d+\.\d+)/m),
      sha256File(path),
      findJailer(path),
    ]);
    assertSupported(version);
    return { path, version, snapshotVersion, sha256, jailer };
  },
});

/** @throws EngineError host_unfit for a version before 1.10 */
export function assertSupported(version: string): void {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1])) return;
  throw new EngineError(
    'host_unfit',
    `Firecracker ${version} is too old: ${OLDEST.join('.')} or newer is needed`,
    { remedy: REMEDY },
  );
}

async function ask(path: string, option: string, answer: RegExp): Promise<string> {
  const { stdout } = await run(path, [option], { timeout: 10_000 }).catch((error: unknown) => {
    throw new EngineError('host_unfit', `${path} ${option} failed: ${messageOf(error)}`, {
      remedy: REMEDY,
      cause: error,
    });
  });
  const found = answer.exec(stdout)?.[1];
  if (found === undefined)
    throw new EngineError(
      'host_unfit',
      `${path} ${option} says what is not understood: ${stdout.slice(0, 200)}`,
      { remedy: REMEDY },
    );
  return found;
}
