/**
 * Snapshots that are being branched off running sandboxes, and those that could not be.
 *
 * Each is journaled as `writing` before anything of it exists. A daemon that starts again finds it complete on disk and finishes it, or
 * tells of it as failed until the start after that.
 */
import type { Manifest } from '@forkd/engine';
import type { DraftRow, Registry } from './registry/registry.js';

export interface Draft {
  row: DraftRow;
  /** Of the sandbox that it is branched off; null when an earlier daemon began it. */
  manifest: Manifest | null;
  /** Set when its source runs again. */
  taken: { mode: string; pauseMs: number; reason?: string } | null;
  /** Resolves when it is ready or has failed. */
  readonly settled: Promise<void>;
  settle: () => void;
}

/** Failed drafts that are kept, to be told to who asks for them. */
const keptFailures = 100;

export class Drafts {
  readonly #registry: Registry;
  readonly #drafts = new Map<string, Draft>();

  constructor(registry: Registry) {
    this.#registry = registry;
  }

  /** Journals a draft, from then on it counts. @throws ApiError when it cannot be journaled */
  begin(row: DraftRow, manifest: Manifest | null): Draft {
    this.#registry.journalDraft(row);
    let settle: () => void = () => undefined;
    const settled = new Promise<void>((resolve) => {
      settle = resolve;
    });
    const draft: Draft = { row, manifest, taken: null, settled, settle };
    this.#drafts.set(row.id, draft);
    return draft;
  }

  /** It exists: from now on it is a snapshot as others are. */
  complete(draft: Draft): void {
    this.#drafts.delete(draft.row.id);
    draft.settle();
  }

  /** It could not be written. Its tag is free again. */
  fail(draft: Draft, problem: string): void {
    Object.assign(draft.row, { status: 'failed', problem });
    try {
      this.#registry.journalDraft(draft.row);
    } catch {
      // The disk is full, say. Then the journal has it as being written, and the next start as failed.
    }
    draft.settle();
    const failed = [...this.#drafts.values()].filter(({ row }) => row.status === 'failed');
    for (const { row } of failed.slice(0, -keptFailures)) this.forget(row.id);
  }

  /** Forgets a draft that nobody will ask for. */
  forget(id: string): void {
    const draft = this.#drafts.get(id);
    if (draft === undefined) return;
    this.#drafts.delete(id);
    try {
      this.#registry.dropSnapshot(id);
    } catch {
      // The disk is full, say. Then the journal still has it: the next start tells of it as failed, and the one after that forgets it.
    }
    draft.settle();
  }

  /** Takes over what an earlier daemon has told of. */
  adopt(row: DraftRow): void {
    const draft = this.begin(row, null);
    draft.settle();
  }

  get(id: string): Draft | undefined {
    return this.#drafts.get(id);
  }

  /** The draft that a tag or id stands for; the newest where several had the tag. */
  find(ref: string): Draft | undefined {
    return this.#drafts.get(ref) ?? [...this.#drafts.values()].findLast(({ row }) => row.tag === ref);
  }

  all(): Draft[] {
    return [...this.#drafts.values()];
  }

  /** Those that are being written: all, or those of one sandbox. */
  writing(sandbox?: string): Draft[] {
    return this.all().filter(
      ({ row }) => row.status === 'writing' && (sandbox === undefined || row.sandbox === sandbox),
    );
  }
}
