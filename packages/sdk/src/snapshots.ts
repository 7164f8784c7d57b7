/** Snapshots. Wherever a tag is taken, an id works. */
import { paths, SnapshotDetail, SnapshotInfo, VerifyReport } from '@forkd/api';
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

  /** Removes it with its tags. ConflictError snapshot_in_use while a sandbox continues from it. */
  async remove(ref: string, signal?: AbortSignal): Promise<void> {
    await this.#transport.done('DELETE', paths.snapshot(ref), { signal });
  }

  /** Reads every byte against its hash. */
  async verify(ref: string, signal?: AbortSignal): Promise<VerifyReport> {
    return this.#transport.json<VerifyReport>('POST', paths.snapshotVerify(ref), VerifyReport, {
      signal,
      timeoutMs: 30 * 60_000,
    });
  }
}
