/** Branches in tests: snapshots that go when they go out of scope. */
import type { SnapshotInfo } from '@forkd/api';
import type { BranchOptions, Forkd, Sandbox } from '@forkd/sdk';
import { client, fork, sh } from '../sandbox/support.js';

export interface Branched extends AsyncDisposable {
  readonly info: SnapshotInfo;
  readonly id: string;
}

/**
 * Branches a sandbox. The snapshot is removed at the end of the scope, with what stands on it; sandboxes must be gone by then.
 *
 * @example await using half = await branch(box);
 */
export async function branch(
  box: Sandbox,
  options: BranchOptions = {},
  from: Forkd = client(),
): Promise<Branched> {
  const info = await box.branch(options);
  return { info, id: info.id, [Symbol.asyncDispose]: () => drop(info.id, from) };
}

/** Removes a snapshot with what stands on it. Fine when it is gone. */
export async function drop(id: string, from: Forkd = client()): Promise<void> {
  await from.snapshots.removeWithDependents(id).catch((error: { code?: string }) => {
    if (error.code !== 'snapshot_not_found') throw error;
  });
}

/** What a child of a snapshot answers to a command. */
export async function inChild(snapshot: string, command: string, from: Forkd = client()): Promise<string> {
  await using children = await fork(1, { snapshot }, from);
  return await sh(children.box, command);
}

/** Removes all snapshots that were branched off a sandbox. */
export async function dropAllOf(sandbox: string, from: Forkd = client()): Promise<void> {
  const all = await from.snapshots.list();
  for (const { id, branched_from } of all) if (branched_from === sandbox) await drop(id, from);
}
