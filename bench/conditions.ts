import { cpus, loadavg, release, totalmem } from 'node:os';
import type { Forkd } from '@forkd/sdk';
import { BUSY_LOAD, type Conditions } from './report.js';

/** What a run was made under. @param load the load average before it began */
export async function conditionsOf(
  client: Forkd,
  template: string,
  qemuVersion: string,
  load = loadavg()[0]!,
): Promise<Conditions> {
  const snapshot = await client.snapshots.get(template);
  const checks = (await client.host()).checks as { name: string; found: string }[];
  return {
    date: new Date().toISOString(),
    cores: cpus().length,
    memory_mib: Math.round(totalmem() / 2 ** 20),
    accelerator: snapshot.accelerator,
    accelerator_reason: checks.find((check) => check.name === 'accelerator')?.found ?? '',
    engine: snapshot.engine,
    engine_version: qemuVersion,
    node: process.version,
    host_kernel: release(),
    template,
    template_memory_mib: snapshot.memory_mib,
    load_average_at_start: load,
    ...(load > BUSY_LOAD && { warning: `the host was busy at the start: load average ${load.toFixed(2)}` }),
  };
}
