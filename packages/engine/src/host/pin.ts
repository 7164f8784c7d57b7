import { AGENT_PROTOCOL_VERSION } from '@forkd/wire';
import { DEVICES, MACHINE_TYPE } from '../qemu/argv.js';
import { findQemu } from '../qemu/binary.js';
import type { MachinePin } from '../snapshot/index.js';
import type { Accelerator } from '../types.js';
import { cpuFlags } from './cpu.js';
import { tscKhz } from './tsc.js';

/** The CPU that guests see. Under tcg `max` is the same on every host for one QEMU; under kvm it is the host's, whose flags are pinned. */
const CPU_MODELS = { tcg: 'max', kvm: 'host,migratable=on' } as const satisfies Record<Accelerator, string>;

/** What a snapshot made on this host now would be tied to. The kernel is the template's to say. */
export async function hostPin(
  accelerator: Accelerator,
  shimBinary: string,
): Promise<Omit<MachinePin, 'kernel' | 'kernelSha256'>> {
  const [qemu, flags, khz] = await Promise.all([
    findQemu(),
    accelerator === 'kvm' ? cpuFlags() : [],
    tscKhz(shimBinary),
  ]);
  return {
    engine: 'qemu',
    engineVersion: qemu.version,
    engineSha256: qemu.sha256,
    firmware: qemu.firmware,
    machineType: `${MACHINE_TYPE} devices=${DEVICES}`,
    cpuModel: CPU_MODELS[accelerator],
    cpuFlags: flags,
    accelerator,
    agentProtocol: AGENT_PROTOCOL_VERSION,
    tscKhz: khz,
  };
}
