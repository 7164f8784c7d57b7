import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError, messageOf } from '../errors.js';
import type { VmmUser } from '../machine/run-directory.js';
import { coveredBytes } from '../memory/index.js';
import type { CapturedLayer, CapturePlan, PreparedCapture, RamRange } from '../shim/index.js';
import {
  type BranchOrigin,
  type Chain,
  type Manifest,
  type SnapshotStore,
  wantsFlattening,
} from '../snapshot/index.js';
import { sealPart } from '../snapshot/seal.js';
import { type SnapshotDraft, spaceError } from '../snapshot/store.js';
import type { BranchedSnapshot, Branching, BranchOptions, LogFunction } from '../types.js';
import type { FrozenDisk, PreparedDisk, Vmm, VmmDisks } from '../vmm/types.js';
import { belowOf } from './below.js';
import { reserveHeadroom } from './headroom.js';
import { flatParts, LAYER, linkedParts } from './parts.js';
import { pauseByShim } from './pause.js';
import { PreviousLink } from './previous-link.js';
import type { RunState } from './run-state.js';
import { assertRuns } from './standstill.js';
import { readState, writeState } from './state-file.js';

export interface BranchSource {
  id: string;
  vmm: Vmm;
  runState: RunState;
  /** Of the snapshot that the sandbox was forked from. */
  manifest: Manifest;
  ram: readonly RamRange[];
  store: SnapshotStore;
  user: VmmUser | undefined;
  log: LogFunction;
}

/** The file that the VMM saves its device state to, in its own directory. */
const STATE_FILE = 'branch.state';

/** What is under way between the pause and the end of a branch. */
interface Held {
  draft: SnapshotDraft;
  chain: Chain;
  prepared: PreparedCapture;
  pauseMs: number;
  state: Buffer;
  /** Overlays in the draft, lowest first. */
  disks: FrozenDisk[];
  full: boolean;
}

/**
 * Captures one sandbox, again and again. What does not need the pause is done before or after it; whatever fails, the source is
 * resumed first, and nothing is left behind.
 */
export class Brancher {
  readonly #source: BranchSource;
  readonly #previous: PreviousLink;
  readonly #overlays: VmmDisks;
  /** Branches queue: the shim holds one capture at a time. */
  #last: Promise<unknown> = Promise.resolve();
  readonly #stop = new AbortController();
  /** Memory that is reserved for the clone of the branch under way. */
  #headroom: Disposable | null = null;

  constructor(source: BranchSource) {
    this.#source = source;
    this.#previous = new PreviousLink(source.store, source.manifest);
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
    await assertRuns(this.#source.id, this.#source.vmm.shim.vmmPid);
    const { chain, pin } = await this.#previous.chain();
    using _pin = pin;
    await this.#previous.shortenDisks(chain, this.#overlays);
    await this.#overlays.gather(this.#previous.covered).catch((error: unknown) => {
      this.#source.log('warn', `the disk of ${this.#source.id} stays in many files: ${messageOf(error)}`);
    });
    const draft = await store.draft(options.snapshotId);
    try {
      const held = await this.#capture(options, chain, draft);
      const ready = this.#write(options.snapshotId, held).finally(() => draft[Symbol.asyncDispose]());
      ready.catch(() => {});
      const { mode, reason } = held.prepared;
      return {
        snapshotId: options.snapshotId,
        mode: held.full ? 'full' : mode,
        ...(reason && { reason }),
        pauseMs: held.pauseMs,
        ready,
      };
    } catch (error) {
      await draft[Symbol.asyncDispose]();
      throw spaceError(error, draft.dir);
    }
  }

  async #capture(options: BranchOptions, chain: Chain, draft: SnapshotDraft): Promise<Held> {
    const { vmm, ram, manifest, id, log } = this.#source;
    const { shim } = vmm;
    const began = performance.now();
    const slow = options.mode === 'diff' ? undefined : await this.#overlays.whySlow(draft.dir);
    const preparing = [
      this.#overlays.prepare(manifest.diskBytes, draft.dir),
      this.#prepareMemory({
        ram,
        mode: options.mode === 'diff' || slow !== undefined ? 'diff' : 'live',
        patient: options.patient ?? false,
        below: { ...belowOf(chain, manifest), id: chain.links.at(-1)!.id },
        layer: join(draft.dir, LAYER),
        id: options.snapshotId,
      }),
      rm(join(vmm.dir, STATE_FILE), { force: true }),
    ] as const;
    try {
      // All of them, also when one fails: what the others have prepared is given up below.
      await Promise.allSettled(preparing);
      const [disk, memory] = await Promise.all(preparing);
      const prepared = slow === undefined ? memory : { ...memory, reason: slow };
      log('debug', `a branch of ${id} is prepared`, { prepareMs: performance.now() - began });
      const pauseMs = await this.#source.runState.instant((paused) => this.#pause(disk, paused));
      const disks = await this.#overlays.collect(this.#previous.covered, draft.dir);
      const state = await readState(join(vmm.dir, STATE_FILE));
      this.#previous.frozen(options.snapshotId, disk.below);
      return { draft, chain, prepared, pauseMs, state, disks, full: options.mode === 'full' };
    } catch (error) {
      await shim.captureAbort();
      this.#cloneGone();
      throw error;
    } finally {
      await rm(join(vmm.dir, STATE_FILE), { force: true });
    }
  }

  /** Memory as it was asked for; copied in the pause where the host has no room for what a clone may come to cost. */
  async #prepareMemory(plan: CapturePlan): Promise<PreparedCapture> {
    const { shim } = this.#source.vmm;
    const prepared = await shim.capturePrepare(plan);
    if (prepared.mode === 'diff') return prepared;
    const headroom = await reserveHeadroom(shim.vmmPid, prepared.privateBytes);
    this.#headroom = headroom.held;
    if (headroom.lacking === null) return prepared;
    await shim.captureAbort();
    return { ...(await shim.capturePrepare({ ...plan, mode: 'diff' })), reason: headroom.lacking };
  }

  #cloneGone(): void {
    this.#headroom?.[Symbol.dispose]();
    this.#headroom = null;
  }

  /** Freezes disk, device state and memory of one instant. Milliseconds that the guest stood still. */
  async #pause(disk: PreparedDisk, paused: boolean): Promise<number> {
    const { vmm, id, log } = this.#source;
    const script = vmm.pauseScript(disk, STATE_FILE);
    try {
      const { pauseMs, frozen } = await pauseByShim(vmm, script, paused);
      await this.#overlays.switched(disk);
      await vmm.checkPause(STATE_FILE, frozen);
      log('debug', `the pause of ${id}`, { pauseMs, stepsMs: frozen.steps });
      return pauseMs;
    } catch (error) {
      this.#overlays.unknown();
      throw error;
    }
  }

  /** After the pause: copies memory, hashes, and makes the snapshot exist. It is synced after that. */
  async #write(snapshotId: string, held: Held): Promise<BranchedSnapshot> {
    const { draft, chain, prepared, pauseMs, state, disks, full } = held;
    const { vmm, manifest, id, log, store } = this.#source;
    const { signal } = this.#stop;
    const began = performance.now();
    try {
      const layer: CapturedLayer = await vmm.shim.captureCopy(signal);
      this.#cloneGone();
      await writeState(join(draft.dir, 'state'), state);
      const origin: BranchOrigin = {
        parent: chain.links.at(-1)!.id,
        chain: chain.links.map((entry) => entry.id),
        sandbox: id,
        mode: full ? 'full' : prepared.mode,
        pauseMs,
        extents: layer.extents,
        lowerDisks: [],
      };
      const captured = { dir: draft.dir, chain, disks };
      const [stateEntry, parts] = await Promise.all([
        sealPart(join(draft.dir, 'state'), 'state', signal),
        full
          ? flatParts(captured, layer, origin, manifest, store, signal)
          : linkedParts(captured, origin, signal),
      ]);
      const sealed = performance.now();
      const written = await draft.commit({
        ...manifest,
        id: snapshotId,
        createdAt: Date.now(),
        // A branch has the user's processes running in it: nothing of it may run before it is claimed.
        template: { ...manifest.template, prime: [] },
        branch: parts.branch,
        files: { memory: parts.memory, state: stateEntry, disk: parts.disk },
      });
      const { ms: copyMs, comparedPages, unchangedPages } = layer;
      // Some of the copy may have come before the pause.
      const steps = { copyMs, untilSealedMs: sealed - began, commitMs: performance.now() - sealed };
      log('debug', `the writing of ${snapshotId}`, { ...steps, comparedPages, unchangedPages });
      const durable = store.durable(snapshotId);
      durable.catch(() => {}); // Told to who asks, and by what the snapshot is from then on.
      this.#previous.advance(written);
      this.#flattenSoon(written);
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
      this.#cloneGone();
      throw spaceError(error, draft.dir);
    }
  }

  /** Flattens in the background what has come near the limits. Nobody waits for it before they are met. */
  #flattenSoon(manifest: Manifest): void {
    const { store, log } = this.#source;
    store
      .chain(manifest)
      .then(async (chain) => {
        if (wantsFlattening(chain)) await store.flatten(manifest.id);
      })
      .catch((error: unknown) => {
        log('warn', `snapshot ${manifest.id} could not be flattened: ${messageOf(error)}`);
      });
  }
}
