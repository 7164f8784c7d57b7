/** Snapshots as listings show them. */
import type { SnapshotInfo } from '@forkd/api';
import { type Manifest, messageOf } from '@forkd/engine';
import type { Draft } from './drafts.js';

/** What a manifest does not say. */
export interface SnapshotContext {
  tags: string[];
  dir: string;
  /** Number of live sandboxes that continue from it. */
  sandboxes: number;
  /** Whether it outlives a crash of the host. */
  durable: boolean;
}

/** How long the copy of a branch took, and how it came about; known to the daemon that took it. */
export interface BranchFacts {
  copyMs?: number;
  physicalBytes?: number;
  /** Why not in the mode that was asked for. */
  reason?: string;
}

/** A snapshot that is complete. @param problem why this host cannot run it */
export function readyInfo(
  manifest: Manifest,
  context: SnapshotContext,
  problem: string | null,
  facts: BranchFacts = {},
): SnapshotInfo {
  const { branch } = manifest;
  return {
    ...named(manifest.id, context),
    created_at_unix: Math.floor(manifest.createdAt / 1000),
    status: 'ready',
    bootable: problem === null,
    ...(problem !== null && { warning: problem }),
    ...machineOf(manifest),
    ...(branch && {
      branched_from: branch.sandbox,
      mode: branch.mode,
      ...(facts.reason !== undefined && { mode_reason: facts.reason }),
      pause_ms: branch.pauseMs,
      ...(facts.copyMs !== undefined && { diff_ms: facts.copyMs }),
      diff_physical_bytes:
        branch.flat?.layer.physicalBytes ?? facts.physicalBytes ?? covered(branch.extents, 'data'),
      diff_logical_bytes: branch.flat?.layer.logicalBytes ?? covered(branch.extents),
    }),
  };
}

/** A snapshot that is being written, or that could not be. */
export function draftInfo({ row, manifest, taken }: Draft, context: SnapshotContext): SnapshotInfo {
  const { status, problem, tag } = row;
  return {
    ...named(row.id, context),
    ...(tag !== null && { tag }),
    created_at_unix: Math.floor(row.createdAt / 1000),
    status,
    bootable: false,
    warning: status === 'failed' ? `it could not be written: ${problem ?? 'unknown'}` : 'it is being written',
    ...(manifest === null ? unknownMachine : machineOf(manifest)),
    branched_from: row.sandbox,
    ...(taken && {
      mode: taken.mode,
      ...(taken.reason !== undefined && { mode_reason: taken.reason }),
      pause_ms: taken.pauseMs,
    }),
  };
}

/** A snapshot whose manifest cannot be read. */
export function damagedInfo(id: string, context: SnapshotContext, error: unknown): SnapshotInfo {
  return {
    ...named(id, context),
    created_at_unix: 0,
    status: 'failed',
    bootable: false,
    warning: messageOf(error),
    ...unknownMachine,
  };
}

function named(id: string, { tags, dir, sandboxes, durable }: SnapshotContext) {
  return { tag: tags[0] ?? id, tags, id, dir, sandboxes, durable };
}

function machineOf(manifest: Manifest) {
  return {
    template: manifest.template.name,
    engine: manifest.machine.engine,
    engine_version: manifest.machine.engineVersion,
    accelerator: manifest.machine.accelerator,
    memory_mib: Math.round(manifest.memoryBytes / 1_048_576),
    vcpus: manifest.vcpus,
    disk_mib: Math.round(manifest.diskBytes / 1_048_576),
    interpreters: manifest.template.interpreters.map((interpreter) => interpreter.name),
  };
}

const unknownMachine = {
  engine: 'unknown',
  accelerator: 'unknown',
  memory_mib: 0,
  vcpus: 0,
  interpreters: [] as string[],
};

/** Bytes of guest memory that extents cover. */
function covered(extents: readonly { kind: string; length: number }[], kind?: string): number {
  const counted = kind === undefined ? extents : extents.filter((extent) => extent.kind === kind);
  return counted.reduce((sum, { length }) => sum + length, 0);
}
