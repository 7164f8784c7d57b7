import { link } from 'node:fs/promises';
import { join } from 'node:path';
import type { Shim } from '../shim/index.js';
import type { Accelerator } from '../types.js';
import { bootFiles } from '../vmm/boot-files.js';
import { orEnded } from '../vmm/ended.js';
import {
  type BootSpec,
  captured,
  type EnginePin,
  type Vmm,
  type VmmDriver,
  type WaitingSpec,
} from '../vmm/types.js';
import { bootArgv, childArgv, commandLine, DEVICES, MACHINE_TYPE, vmmFiles } from './argv.js';
import { findQemu } from './binary.js';
import { makeOverlay } from './disk.js';
import { enableEvents } from './load.js';
import { Qmp } from './qmp.js';
import { QemuVmm } from './vmm.js';

/** The CPU that guests see. Under tcg `max` is the same on every host for one QEMU; under kvm it is the host's, whose flags are pinned. */
const CPU_MODELS = { tcg: 'max', kvm: 'host,migratable=on' } as const satisfies Record<Accelerator, string>;

/** QEMU, with kvm or tcg. */
export const qemuDriver: VmmDriver = {
  engine: 'qemu',
  find: findQemu,
  pin,
  commandLine,
  startWaiting,
  startBoot,
  adopt,
};

async function pin(accelerator: Accelerator): Promise<EnginePin> {
  const qemu = await findQemu();
  return {
    engine: 'qemu',
    engineVersion: qemu.version,
    engineSha256: qemu.sha256,
    firmware: qemu.firmware,
    machineType: `${MACHINE_TYPE} devices=${DEVICES}`,
    cpuModel: CPU_MODELS[accelerator],
  };
}

async function startWaiting(spec: WaitingSpec, signal: AbortSignal): Promise<Vmm> {
  const { dir, image, diskBytes, user, binary, shape } = spec;
  await Promise.all([link(image, join(dir, vmmFiles.image)), makeOverlay(dir, diskBytes, user)]);
  const vmm = await QemuVmm.start({ ...spec, argv: childArgv(binary, shape), console: 'ring' }, signal);
  try {
    await enableEvents(vmm, signal);
    return vmm;
  } catch (error) {
    await vmm.destroy();
    throw error;
  }
}

async function startBoot(spec: BootSpec, signal: AbortSignal): Promise<Vmm> {
  const { workDir: dir, shape, tscKhz } = spec;
  const { path } = await findQemu();
  const argv = bootArgv(path, shape, { kernel: bootFiles.kernel, initrd: bootFiles.initrd, tscKhz });
  const mapped = [{ path: join(dir, captured.memory), bytes: BigInt(shape.memoryBytes) }];
  return await QemuVmm.start({ ...spec, dir, argv, mapped, console: 'file' }, signal);
}

async function adopt(dir: string, shim: Shim, signal: AbortSignal): Promise<Vmm> {
  const qmp = await orEnded(Qmp.connect(join(dir, vmmFiles.monitor), signal), shim, signal);
  return new QemuVmm(dir, shim, qmp, 'ring');
}
