import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError } from '../errors.js';
import { scratchIn } from '../guest/cache.js';
import { copyDisk, ensureDisk } from '../guest/disk.js';
import { ensureImage } from '../guest/image.js';
import { ensureInitramfs } from '../guest/initramfs.js';
import { ensureKernel } from '../guest/kernel.js';
import type { ShimAbilities } from '../shim/index.js';
import type { Accelerator } from '../types.js';
import { BOOT_MS, bootMachine } from '../vmm/boot.js';
import { driverOf } from '../vmm/drivers.js';
import { captured } from '../vmm/types.js';
import { hostPin } from './pin.js';
import { vmmUser } from './user.js';
import type { Candidate } from './verdict.js';

const MiB = 1024 * 1024;

/** How long our guest may take to boot, ms: a second or two on a kvm that works. */
const PROOF_MS = { kvm: 15_000, tcg: BOOT_MS } as const;

/**
 * The deadline of a proof, ms. `FORKD_PROOF_SECS` sets it for a host that is slower than any hardware, such as one that is itself emulated.
 *
 * @throws EngineError invalid_argument
 */
function proofMs(accelerator: Accelerator): number {
  const text = process.env.FORKD_PROOF_SECS;
  if (text === undefined) return PROOF_MS[accelerator];
  if (!/^[1-9]\d{0,3}$/.test(text))
    throw new EngineError(
      'invalid_argument',
      `FORKD_PROOF_SECS=${JSON.stringify(text)} is not a number of seconds from 1 to 9999`,
    );
  return Number(text) * 1000;
}

export interface ProofContext {
  home: string;
  nativeDir: string;
  abilities: ShimAbilities;
  signal: AbortSignal | undefined;
  /** What it is at, for people. */
  onProgress?: ((line: string) => void) | undefined;
}

/**
 * Boots our own guest on a candidate and talks to its agent: the only proof that counts, since a /dev/kvm that opens may not get an
 * ordinary kernel past its decompression (design, section 2).
 *
 * @throws whatever failed
 */
export async function proveCandidate(
  { engine, accelerator }: Candidate,
  context: ProofContext,
): Promise<void> {
  const driver = driverOf(engine);
  const { home, nativeDir, abilities, signal, onProgress } = context;
  const shimBinary = join(nativeDir, 'forkd-shim');
  const kernel = await ensureKernel({ home, signal, onProgress });
  const [initramfs, image, disk, pin] = await Promise.all([
    ensureInitramfs({ home, nativeDir, kernel, signal }),
    ensureImage({ home, base: 'busybox', packages: [], signal }),
    ensureDisk({ home, bytes: 64 * MiB, signal }),
    hostPin(driver, accelerator, shimBinary),
  ]);
  onProgress?.(
    `booting a guest with ${engine} on ${accelerator}, to see whether it works here: ${proofMs(accelerator) / 1000} s at most`,
  );
  const parent = join(home, 'builds');
  await mkdir(parent, { recursive: true, mode: 0o700 });
  await using scratch = await scratchIn(parent);
  await copyDisk(disk.path, join(scratch.dir, captured.disk), signal);
  await using machine = await bootMachine(driver, {
    workDir: scratch.dir,
    shape: { accelerator, cpuModel: pin.cpuModel, memoryBytes: 128 * MiB, vcpus: 1 },
    shimBinary,
    abilities,
    user: vmmUser(abilities, accelerator),
    kernel,
    initrd: initramfs.path,
    image: image.path,
    tscKhz: pin.tscKhz,
    timeoutMs: proofMs(accelerator),
    ...(signal && { signal }),
  });
  await machine.session.ping(signal);
}
