import { firecrackerDriver } from '../firecracker/driver.js';
import { qemuDriver } from '../qemu/driver.js';
import type { EngineName } from '../types.js';
import type { VmmDriver } from './types.js';

const drivers: Record<EngineName, VmmDriver> = { qemu: qemuDriver, firecracker: firecrackerDriver };

/** The driver of an engine. */
export function driverOf(engine: EngineName): VmmDriver {
  return drivers[engine];
}
