import { link, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError } from '../errors.js';
import type { Shim } from '../shim/index.js';
import type { Accelerator } from '../types.js';
import { bootFiles } from '../vmm/boot-files.js';
import { COMMAND_LINE } from '../vmm/command-line.js';
import { orEnded } from '../vmm/ended.js';
import type { BootSpec, EnginePin, Vmm, VmmDriver, WaitingSpec } from '../vmm/types.js';
import type { FirecrackerApi } from './api.js';
import { findFirecracker } from './binary.js';
import { DEVICES, drives, fcFiles } from './files.js';
import { FirecrackerVmm } from './vmm.js';

const MiB = 1024 * 1024;

/** Address of a guest on its vsock: each VMM has a host of its own there, so all may have the same. */
const GUEST_CID = 3;

// What the machine does not have is not looked for; it has no more of a keyboard than the byte that resets it.
const BOOT_ARGS = `${COMMAND_LINE} reboot=k pci=off 8250.nr_uarts=1 i8042.noaux i8042.nomux i8042.dumbkbd`;

/** Firecracker, on kvm. */
export const firecrackerDriver: VmmDriver = {
  engine: 'firecracker',
  find: findFirecracker,
  pin,
  commandLine: () => BOOT_ARGS,
  startWaiting,
  startBoot,
  adopt,
};

async function pin(accelerator: Accelerator): Promise<EnginePin> {
  if (accelerator !== 'kvm')
    throw new EngineError('host_unfit', `Firecracker needs kvm, accelerator ${accelerator} was asked for`, {
      remedy: 'Use engine qemu.',
    });
  const { version, sha256, snapshotVersion } = await findFirecracker();
  return {
    engine: 'firecracker',
    engineVersion: version,
    engineSha256: sha256,
    firmware: {},
    machineType: `snapshot format ${snapshotVersion}, devices=${DEVICES}`,
    cpuModel: 'host',
  };
}

/** A process without a machine: disk and memory come with the snapshot. */
async function startWaiting(spec: WaitingSpec, signal: AbortSignal): Promise<Vmm> {
  await link(spec.image, join(spec.dir, fcFiles.image));
  const { jailer } = await findFirecracker();
  return await FirecrackerVmm.start({ ...spec, jailer: jailer.path }, signal);
}

async function startBoot(spec: BootSpec, signal: AbortSignal): Promise<Vmm> {
  if (spec.kernel.vmlinux === null)
    throw new EngineError(
      'host_unfit',
      "the guest's kernel is packed in a way that is not known here: Firecracker needs its ELF",
      { remedy: 'Use engine qemu.' },
    );
  const { path: binary, jailer } = await findFirecracker();
  const vmm = await FirecrackerVmm.start({ ...spec, dir: spec.workDir, binary, jailer: jailer.path }, signal);
  try {
    await orEnded(configure(vmm.api, spec, signal), vmm.shim, signal);
    return vmm;
  } catch (error) {
    await vmm.destroy();
    throw error;
  }
}

async function configure(api: FirecrackerApi, spec: BootSpec, signal: AbortSignal): Promise<void> {
  const { vcpus, memoryBytes } = spec.shape;
  const at = { signal };
  await api.put('/machine-config', { vcpu_count: vcpus, mem_size_mib: memoryBytes / MiB, smt: false }, at);
  const boot = { kernel_image_path: bootFiles.kernel, initrd_path: bootFiles.initrd, boot_args: BOOT_ARGS };
  await api.put('/boot-source', boot, at);
  // Each drive is told to flush nothing on the host: a snapshot is synced when it is made.
  for (const [drive_id, path_on_host, is_read_only] of [
    [drives.image, fcFiles.image, true],
    [drives.disk, fcFiles.disk, false],
  ] as const)
    await api.put(
      `/drives/${drive_id}`,
      { drive_id, path_on_host, is_read_only, is_root_device: false, cache_type: 'Unsafe' },
      at,
    );
  await api.put('/vsock', { guest_cid: GUEST_CID, uds_path: fcFiles.vsock }, at);
  await api.put('/actions', { action_type: 'InstanceStart' }, at);
}

async function adopt(dir: string, shim: Shim): Promise<Vmm> {
  const { uid, gid } = await stat(join(dir, fcFiles.disk));
  return new FirecrackerVmm(dir, shim, uid === process.getuid!() ? undefined : { uid, gid });
}
