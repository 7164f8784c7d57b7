import { AGENT_PROTOCOL_VERSION } from '@forkd/wire';
import type { MachinePin } from '../snapshot/index.js';
import type { Accelerator } from '../types.js';
import type { VmmDriver } from '../vmm/types.js';
import { cpuFlags } from './cpu.js';
import { tscKhz } from './tsc.js';

/** What a snapshot made on this host now would be tied to. The kernel is the template's to say. */
export async function hostPin(
  driver: VmmDriver,
  accelerator: Accelerator,
  shimBinary: string,
): Promise<Omit<MachinePin, 'kernel' | 'kernelSha256'>> {
  const [engine, flags, khz] = await Promise.all([
    driver.pin(accelerator),
    accelerator === 'kvm' ? cpuFlags() : [],
    tscKhz(shimBinary),
  ]);
  return {
    ...engine,
    cpuFlags: flags,
    accelerator,
    agentProtocol: AGENT_PROTOCOL_VERSION,
    tscKhz: khz,
  };
}
