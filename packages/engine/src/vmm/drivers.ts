import { qemuDriver } from '../qemu/driver.js';
import type { EngineName } from '../types.js';
import type { VmmDriver } from './types.js';

const drivers: Partial<Record<EngineName, VmmDriver>> = { qemu: qemuDriver };

/** The driver of an engine. */
export function driverOf(engine: EngineName): VmmDriver {
  const driver = drivers[engine];
  if (!driver) throw new RangeError(`there is no engine ${engine}`);
  return driver;
}
