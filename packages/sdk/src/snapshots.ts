/** Snapshots. Wherever a tag is taken, an id works. */
import { paths, RemovalReport, SnapshotDetail, SnapshotInfo, VerifyReport } from '@forkd/api';
import type { Transport } from './transport.js';

const snapshotList = { type: 'array', items: SnapshotInfo };

export class Snapshots {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  async list(signal?: AbortSignal): Promise<SnapshotInfo[]> {
    return this.#transport.json<SnapshotInfo[]>('GET', paths.snapshots(), snapshotList, { signal });
  }

  async get(ref: string, signal?: AbortSignal): Promise<SnapshotDetail> {
    return this.#transport.json<SnapshotDetail>('GET', paths.snapshotInfo(ref), SnapshotDetail, { signal });
  }

  /** Removes it with its tags. ConflictError snapshot_in_use while a sandbox continues from it, or a snapshot stands on it. */
  async remove(ref: string, signal?: AbortSignal): Promise<void> {
    await this.#transport.done('DELETE', paths.snapshot(ref), { signal });
  }

  /** Removes it and all that stand on it. ConflictError snapshot_in_use while a sandbox continues from one of them. */
  async removeWithDependents(ref: string, signal?: AbortSignal): Promise<RemovalReport> {
    return this.#transport.json<RemovalReport>('DELETE', paths.snapshot(ref), RemovalReport, {
      query: { cascade: 'true' },
      signal,
    });
  }

  /** Gives it one more tag. ConflictError tag_exists when another snapshot has it; `move` takes it from there. */
  async tag(
    ref: string,
    tag: string,
    options: { move?: boolean; signal?: AbortSignal } = {},
  ): Promise<SnapshotInfo> {
    return this.#transport.json<SnapshotInfo>('POST', paths.snapshotTag(ref), SnapshotInfo, {
      json: { tag, move: options.move },
      signal: options.signal,
    });
  }

  /** Removes snapshots that have no tag and that nothing needs, and disks of setups that no template with a tag is built on. `dryRun`: only says which. */
  async gc(options: { dryRun?: boolean; signal?: AbortSignal } = {}): Promise<RemovalReport> {
    return this.#transport.json<RemovalReport>('POST', paths.snapshotGc(), RemovalReport, {
      query: { dry_run: options.dryRun ? 'true' : undefined },
      signal: options.signal,
    });
  }

  /**
   * Lets a branch stand alone: its memory becomes a base, its disk one file. What it shows stays the same, and what was below it is not needed
   * by it any more. Waits until that is done; whoever forks or runs meanwhile sees nothing of it.
   */
  async flatten(ref: string, signal?: AbortSignal): Promise<SnapshotDetail> {
    return this.#transport.json<SnapshotDetail>('POST', paths.snapshotFlatten(ref), SnapshotDetail, {
      signal,
      timeoutMs: 30 * 60_000,
    });
  }

  /** Reads every byte against its hash. */
  async verify(ref: string, signal?: AbortSignal): Promise<VerifyReport> {
    return this.#transport.json<VerifyReport>('POST', paths.snapshotVerify(ref), VerifyReport, {
      signal,
      timeoutMs: 30 * 60_000,
    });
  }
}
