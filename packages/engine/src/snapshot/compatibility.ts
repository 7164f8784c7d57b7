import type { MachinePin } from './manifest.js';

/** Difference of TSC rates that a guest's clock bears (design, section 9). */
const TSC_TOLERANCE = 0.001;

/**
 * Why a host cannot run a snapshot: the first thing in which they differ, with both sides named. Null when it can.
 *
 * @param pin what the snapshot needs
 * @param host what this host has, for the snapshot's engine and accelerator
 */
export function incompatibility(pin: MachinePin, host: MachinePin): string | null {
  const rows: [string, unknown, unknown][] = [
    ['engine', pin.engine, host.engine],
    ['accelerator', pin.accelerator, host.accelerator],
    [`version of ${pin.engine}`, pin.engineVersion, host.engineVersion],
    [`binary of ${pin.engine} (sha256)`, short(pin.engineSha256), short(host.engineSha256)],
    ['machine type', pin.machineType, host.machineType],
    ['CPU model', pin.cpuModel, host.cpuModel],
    ['agent protocol', pin.agentProtocol, host.agentProtocol],
    ...Object.entries(pin.firmware).map(([name, hash]): [string, unknown, unknown] => [
      `firmware ${name} (sha256)`,
      short(hash),
      short(host.firmware[name] ?? 'none'),
    ]),
  ];
  for (const [what, wanted, found] of rows)
    if (wanted !== found) return `it was made with ${what} ${wanted}, this host has ${found}`;
  const missing = pin.cpuFlags.filter((flag) => !host.cpuFlags.includes(flag));
  if (missing.length > 0) return `it needs CPU features that this host lacks: ${missing.join(', ')}`;
  if (Math.abs(pin.tscKhz - host.tscKhz) > pin.tscKhz * TSC_TOLERANCE)
    return `it was made at a TSC rate of ${pin.tscKhz} kHz, this host has ${host.tscKhz} kHz`;
  return null;
}

function short(hash: string): string {
  return hash.slice(0, 12);
}
