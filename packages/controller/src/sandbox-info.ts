/** A sandbox as listings show it. */
import type { ExitInfo, SandboxInfo } from '@forkd/api';
import type { Machine } from '@forkd/engine';
import type { MachineFacts, SandboxRow } from './registry/registry.js';

/** A sandbox as the API shows it, but what others say of it. */
export function infoOf(row: SandboxRow, machine: Machine | null): Omit<SandboxInfo, 'has_branched'> {
  const timings = machine?.timings;
  return {
    id: row.id,
    snapshot_tag: row.snapshotRef,
    snapshot_id: row.snapshotId,
    state: row.state,
    created_at_unix: Math.floor(row.createdAt / 1000),
    pid: row.pid,
    engine: row.machine?.engine ?? 'unknown',
    accelerator: row.machine?.accelerator ?? 'unknown',
    memory_mib: row.machine?.memory_mib ?? 0,
    vcpus: row.machine?.vcpus ?? 0,
    generation: row.generation,
    hostname: row.hostname,
    metadata: row.metadata,
    // An adopted machine was forked by another daemon: its timings are not known, not zero.
    ...(timings &&
      timings.totalMs > 0 && {
        timings: {
          spawn_ms: timings.spawnMs,
          graft_ms: timings.graftMs,
          load_ms: timings.loadMs,
          hello_ms: timings.helloMs,
          total_ms: timings.totalMs,
        },
      }),
    ...(row.exit !== null && { exit: row.exit satisfies ExitInfo }),
    netns: null,
    guest_addr: '',
    memory_limit_mib: null,
  };
}

/** What of a machine is kept, so that it can be shown when the machine has gone. */
export function factsOf({ manifest }: Machine): MachineFacts {
  return {
    engine: manifest.machine.engine,
    accelerator: manifest.machine.accelerator,
    memory_mib: Math.round(manifest.memoryBytes / 1_048_576),
    vcpus: manifest.vcpus,
  };
}
