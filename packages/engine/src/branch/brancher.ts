import { constants } from 'node:fs';
import { link, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError, messageOf } from '../errors.js';
import type { VmmUser } from '../machine/run-directory.js';
import { coveredBytes } from '../memory/index.js';
import type { CapturedLayer, PreparedCapture, RamRange } from '../shim/index.js';
import { MOST_LINKS } from '../snapshot/chain.js';
import type { Chain, Manifest, SnapshotStore } from '../snapshot/index.js';
import { sealPart } from '../snapshot/seal.js';
import { type SnapshotDraft, spaceError } from '../snapshot/store.js';
import type { BranchedSnapshot, Branching, BranchOptions, LogFunction } from '../types.js';
import type { Vmm, VmmDisks } from '../vmm/types.js';
import { pauseFor } from './pause.js';

export interface BranchSource {
  id: string;
  vmm: Vmm;
  /** Of the snapshot that the sandbox was forked from. */
  manifest: Manifest;
  ram: readonly RamRange[];
  store: SnapshotStore;
  user: VmmUser | undefined;
  log: LogFunction;
}

/** Device state that a VMM may write, bytes; 13 KB is usual. */
const MOST_STATE = 64 * 1024 * 1024;

/** The file that the VMM saves its device state to, in its own directory. */
const STATE_FILE = 'branch.state';

/** What is under way between the pause and the end of a branch. */
interface Held {
  draft: SnapshotDraft;
  chain: Chain;
  prepared: PreparedCapture;
  pauseMs: number;
  state: Buffer;
  /** Names of the overlays in the draft, lowest first. */
  disks: string[];
}

/**
 * Captures one sandbox, again and again. What does not need the pause is done before or after it; whatever fails, the source is
 * resumed first, and nothing is left behind.
 */
export class Brancher {
  readonly #source: BranchSource;
  /** The last link that can be compared with: the fork's snapshot, or the branch before. */
  #previous: Manifest;
  /** How many of the frozen overlays that link holds. */
  #covered = 0;
  readonly #overlays: VmmDisks;
  /** Branches queue: the shim holds one capture at a time. */
  #last: Promise<unknown> = Promise.resolve();
  readonly #stop = new AbortController();

  constructor(source: BranchSource) {
    this.#source = source;
    this.#previous = source.manifest;
    this.#overlays = source.vmm.disks(source.user);
  }

  /** Takes a branch after those before it have been written. Resolves when the source runs again. */
  branch(options: BranchOptions): Promise<Branching> {
    const before = this.#last;
    const result = before.catch(() => {}).then(() => this.#branch(options));
    this.#last = result.then((branching) => branching.ready);
    this.#last.catch(() => {}); // Told to who asked for the branch.
    return result;
  }

  /** Gives up what is being written. */
  async close(): Promise<void> {
    this.#stop.abort(new EngineError('cancelled', `sandbox ${this.#source.id} is being removed`));
    await this.#last.catch(() => {});
  }

  async #branch(options: BranchOptions): Promise<Branching> {
    const { store } = this.#source;
    this.#stop.signal.throwIfAborted();
    options.signal?.throwIfAborted();
    const chain = await this.#comparable();
    const draft = await store.draft(options.snapshotId);
    try {
      const held = await this.#capture(options, chain, draft);
      const ready = this.#write(options.snapshotId, held).finally(() => draft[Symbol.asyncDispose]());
      ready.catch(() => {});
      const { mode, reason } = held.prepared;
      return {
        snapshotId: options.snapshotId,
        mode,
        ...(reason && { reason }),
        pauseMs: held.pauseMs,
        ready,
      };
    } catch (error) {
      await draft[Symbol.asyncDispose]();
      throw spaceError(error, draft.dir);
    }
  }

  /** The chain of the previous link; where that is gone, of the snapshot that the source was forked from, which its life keeps. */
  async #comparable(): Promise<Chain> {
    const { store, manifest } = this.#source;
    try {
      await store.inspect(this.#previous);
      return this.#short(await store.chain(this.#previous));
    } catch (error) {
      if (!(error instanceof EngineError) || this.#previous.id === manifest.id) throw error;
      this.#previous = manifest;
      this.#covered = 0;
      return this.#short(await store.chain(manifest));
    }
  }

  #short(chain: Chain): Chain {
    if (chain.links.length < MOST_LINKS) return chain;
    throw new EngineError(
      'unsupported',
      `sandbox ${this.#source.id} stands on a chain of ${chain.links.length} snapshots, ${MOST_LINKS} at most can be`,
      { remedy: 'Fork from its newest snapshot with mode full, or from an earlier one.' },
    );
  }

  async #capture(options: BranchOptions, chain: Chain, draft: SnapshotDraft): Promise<Held> {
    const { vmm, ram, manifest } = this.#source;
    const { shim } = vmm;
    const origin = (manifest.branch?.chain.length ?? 0) + 1; // files of the snapshot that it was forked from
    const preparing = [
      this.#overlays.prepare(manifest.diskBytes),
      shim.capturePrepare({
        ram,
        mode: options.mode === 'diff' ? 'diff' : 'live',
        below: { files: chain.files, extents: chain.extents, origin },
        layer: join(draft.dir, 'layer'),
      }),
      rm(join(vmm.dir, STATE_FILE), { force: true }),
    ] as const;
    try {
      // All of them, also when one fails: what the others have prepared is given up below.
      await Promise.allSettled(preparing);
      const [disk, prepared] = await Promise.all(preparing);
      const pauseMs = await pauseFor(vmm, async () => {
        await this.#overlays.switch(disk);
        await vmm.saveState(STATE_FILE);
        await shim.captureFreeze();
      });
      const disks = await this.#linkDisks(draft);
      const state = await readState(join(vmm.dir, STATE_FILE));
      return { draft, chain, prepared, pauseMs, state, disks };
    } catch (error) {
      await shim.captureAbort();
      throw error;
    } finally {
      await rm(join(vmm.dir, STATE_FILE), { force: true });
    }
  }

  /**
   * Links the overlays that the previous link does not hold: usually one. Where that link is gone, or failed, those that it would have held
   * come along, since memory is compared with the link below it.
   */
  async #linkDisks(draft: SnapshotDraft): Promise<string[]> {
    const files = (await this.#overlays.frozen()).slice(this.#covered);
    const names = files.map((_, index) => (index === files.length - 1 ? 'disk' : `disk-${index}`));
    await Promise.all(
      files.map((file, index) => link(join(this.#source.vmm.dir, file), join(draft.dir, names[index]!))),
    );
    return names;
  }

  /** After the pause: copies memory, syncs, hashes, and makes the snapshot exist. */
  async #write(snapshotId: string, held: Held): Promise<BranchedSnapshot> {
    const { draft, chain, prepared, pauseMs, state, disks } = held;
    const { vmm, manifest, id, log } = this.#source;
    const { signal } = this.#stop;
    try {
      const layer: CapturedLayer = await vmm.shim.captureCopy(signal);
      await writeState(join(draft.dir, 'state'), state);
      const [memory, stateEntry, ...sealed] = await Promise.all([
        sealPart(join(draft.dir, 'layer'), 'layer', signal),
        sealPart(join(draft.dir, 'state'), 'state', signal),
        ...disks.map((name) => sealPart(join(draft.dir, name), name, signal)),
      ]);
      const disk = sealed.pop()!;
      const parent = chain.links.at(-1)!;
      const written = await draft.commit({
        ...manifest,
        id: snapshotId,
        createdAt: Date.now(),
        // A branch has the user's processes running in it: nothing of it may run before it is claimed.
        template: { ...manifest.template, prime: [] },
        branch: {
          parent: parent.id,
          chain: chain.links.map((entry) => entry.id),
          sandbox: id,
          mode: prepared.mode,
          pauseMs,
          extents: layer.extents,
          lowerDisks: sealed,
        },
        files: { memory, state: stateEntry, disk },
      });
      this.#previous = written;
      this.#covered += disks.length;
      return {
        manifest: written,
        copyMs: layer.ms,
        physicalBytes: layer.bytes,
        logicalBytes: coveredBytes(layer.extents),
      };
    } catch (error) {
      await vmm.shim.captureAbort().catch((problem: unknown) => {
        log('debug', `no capture to end in ${id}: ${messageOf(problem)}`);
      });
      throw spaceError(error, draft.dir);
    }
  }
}

/** Reads what the VMM wrote: a regular file of sane size, whatever else it may have put there. */
async function readState(path: string): Promise<Buffer> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const facts = await file.stat();
  if (!facts.isFile() || facts.size === 0 || facts.size > MOST_STATE)
    throw new EngineError('vmm_failed', `the VMM saved a device state of ${facts.size} bytes`);
  return await file.readFile();
}

async function writeState(path: string, state: Buffer): Promise<void> {
  await using file = await open(path, 'wx', 0o400);
  await file.writeFile(state);
}
