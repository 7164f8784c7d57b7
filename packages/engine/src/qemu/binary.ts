import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { EngineError, messageOf } from '../errors.js';
import { sha256File } from '../hash.js';
import { programFinder } from '../vmm/program.js';

const run = promisify(execFile);

/** Firmware that `-M microvm` loads. */
const FIRMWARE = 'bios-microvm.bin';

const REMEDY = 'Install it: apt-get install --no-install-recommends qemu-system-x86';

/** A QEMU that is fit to run sandboxes. */
export interface QemuBinary {
  /** Absolute, links resolved. */
  path: string;
  /** Such as 7.2.22. */
  version: string;
  sha256: string;
  /** SHA-256 of each firmware file, by name. */
  firmware: Record<string, string>;
}

/**
 * Finds QEMU: `FORKD_QEMU`, else `qemu-system-x86_64` of PATH. Remembers what it found until the file changes.
 *
 * @throws EngineError host_unfit when there is none, or it is older than 7.2
 */
export const findQemu = programFinder<QemuBinary>({
  title: 'QEMU',
  wanted: () => process.env.FORKD_QEMU ?? 'qemu-system-x86_64',
  remedy: REMEDY,
  async inspect(path) {
    const [version, sha256, firmware] = await Promise.all([
      versionOf(path),
      sha256File(path),
      firmwareOf(path),
    ]);
    return { path, version, sha256, firmware };
  },
});

async function versionOf(path: string): Promise<string> {
  const { stdout } = await run(path, ['--version'], { timeout: 10_000 }).catch((error: unknown) => {
    throw new EngineError('host_unfit', `${path} --version failed: ${messageOf(error)}`, {
      remedy: REMEDY,
      cause: error,
    });
  });
  const match = /version (\d+)\.(\d+)\.(\d+)/.exec(stdout);
  if (!match)
    throw new EngineError('host_unfit', `${path} does not say its version: ${stdout.slice(0, 200)}`);
  const [major, minor] = [Number(match[1]), Number(match[2])];
  if (major < 7 || (major === 7 && minor < 2))
    throw new EngineError('host_unfit', `QEMU ${match[1]}.${match[2]} is too old: 7.2 or newer is needed`, {
      remedy: 'Use Debian 12 or newer, or name a newer QEMU in FORKD_QEMU.',
    });
  return `${match[1]}.${match[2]}.${match[3]}`;
}

async function firmwareOf(path: string): Promise<Record<string, string>> {
  const { stdout } = await run(path, ['-L', 'help'], { timeout: 10_000 });
  for (const dir of stdout.split('\n').filter(Boolean)) {
    const file = join(dir, FIRMWARE);
    if (await readFile(file).then(Boolean, () => false)) return { [FIRMWARE]: await sha256File(file) };
  }
  throw new EngineError(
    'host_unfit',
    `QEMU's firmware ${FIRMWARE} is in none of ${stdout.trim().split('\n').join(', ')}`,
    {
      remedy: 'Install it: apt-get install --no-install-recommends seabios qemu-system-data',
    },
  );
}
