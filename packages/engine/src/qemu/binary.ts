import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { access, readFile, realpath, stat } from 'node:fs/promises';
import { delimiter, isAbsolute, join } from 'node:path';
import { promisify } from 'node:util';
import { EngineError, messageOf } from '../errors.js';
import { sha256File } from '../hash.js';

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

let known: { wanted: string; key: string; binary: QemuBinary } | undefined;

/**
 * Finds QEMU: `FORKD_QEMU`, else `qemu-system-x86_64` of PATH. Remembers what it found until the file changes.
 *
 * @throws EngineError host_unfit when there is none, or it is older than 7.2
 */
export async function findQemu(): Promise<QemuBinary> {
  const wanted = process.env.FORKD_QEMU ?? 'qemu-system-x86_64';
  // Every fork asks: the way through PATH is gone again only when the file that it led to has changed.
  if (known?.wanted === wanted && known.key === (await keyOf(known.binary.path).catch(() => '')))
    return known.binary;
  const path = await realpath(await locate(wanted));
  const key = await keyOf(path);
  const [version, sha256, firmware] = await Promise.all([
    versionOf(path),
    sha256File(path),
    firmwareOf(path),
  ]);
  const binary = { path, version, sha256, firmware };
  known = { wanted, key, binary };
  return binary;
}

async function keyOf(path: string): Promise<string> {
  const { ino, size, mtimeMs } = await stat(path);
  return `${path} ${ino} ${size} ${mtimeMs}`;
}

async function locate(wanted: string): Promise<string> {
  const candidates = isAbsolute(wanted)
    ? [wanted]
    : (process.env.PATH ?? '/usr/bin:/bin').split(delimiter).map((dir) => join(dir || '.', wanted));
  for (const candidate of candidates) {
    const usable = await access(candidate, constants.X_OK).then(
      () => true,
      () => false,
    );
    if (usable) return candidate;
  }
  throw new EngineError('host_unfit', `QEMU (${wanted}) is not installed`, { remedy: REMEDY });
}

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
