import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { scratchIn } from '../guest/cache.js';
import { copyDisk, ensureDisk } from '../guest/disk.js';
import { ensureImage } from '../guest/image.js';
import { ensureInitramfs } from '../guest/initramfs.js';
import { ensureKernel } from '../guest/kernel.js';
import type { ShimAbilities } from '../shim/index.js';
import { bootMachine } from '../vmm/boot.js';
import { captured, type VmmDriver } from '../vmm/types.js';
import { PROOF_MS } from './accelerator.js';
import { hostPin } from './pin.js';
import { vmmUser } from './user.js';

const MiB = 1024 * 1024;

export interface ProofContext {
  home: string;
  nativeDir: string;
  abilities: ShimAbilities;
  signal: AbortSignal | undefined;
  /** What it is at, for people. */
  onProgress?: ((line: string) => void) | undefined;
}

/**
 * Boots our own guest on kvm and talks to its agent: the only proof that counts, since a /dev/kvm that opens may not get an
 * ordinary kernel past its decompression (design, section 2).
 *
 * @throws whatever failed
 */
export async function proveKvm(driver: VmmDriver, context: ProofContext): Promise<void> {
  const { home, nativeDir, abilities, signal, onProgress } = context;
  const shimBinary = join(nativeDir, 'forkd-shim');
  const kernel = await ensureKernel({ home, signal, onProgress });
  const [initramfs, image, disk, pin] = await Promise.all([
    ensureInitramfs({ home, nativeDir, kernel, signal }),
    ensureImage({ home, base: 'busybox', packages: [], signal }),
    ensureDisk({ home, bytes: 64 * MiB, signal }),
    hostPin(driver, 'kvm', shimBinary),
  ]);
  onProgress?.(`booting a guest on kvm, to see whether it works here: ${PROOF_MS / 1000} s at most`);
  const parent = join(home, 'builds');
  await mkdir(parent, { recursive: true, mode: 0o700 });
  await using scratch = await scratchIn(parent);
  await copyDisk(disk.path, join(scratch.dir, captured.disk), signal);
  await using machine = await bootMachine(driver, {
    workDir: scratch.dir,
    shape: { accelerator: 'kvm', cpuModel: pin.cpuModel, memoryBytes: 128 * MiB, vcpus: 1 },
    shimBinary,
    abilities,
    user: vmmUser(abilities, 'kvm'),
    kernel,
    initrd: initramfs.path,
    image: image.path,
    tscKhz: pin.tscKhz,
    timeoutMs: PROOF_MS,
    ...(signal && { signal }),
  });
  await machine.session.ping(signal);
}
