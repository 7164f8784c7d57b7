import { constants } from 'node:fs';
import { open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError, messageOf } from '../errors.js';
import type { VmmUser } from '../machine/run-directory.js';
import { coveredBytes, mergeLayers } from '../memory/index.js';
import type { CapturedLayer, CapturePlan, PreparedCapture, RamRange } from '../shim/index.js';
import { flatOrigin, writeFlat } from '../snapshot/flat.js';
import {
  type BranchOrigin,
  type Chain,
  type Manifest,
  MOST_LINKS,
  type SnapshotStore,
  wantsFlattening,
} from '../snapshot/index.js';
import { sealPart } from '../snapshot/seal.js';
import { type SnapshotDraft, spaceError } from '../snapshot/store.js';
import type { BranchedSnapshot, Branching, BranchOptions, LogFunction } from '../types.js';
import type { FrozenDisk, PreparedDisk, Vmm, VmmDisks } from '../vmm/types.js';
import { belowOf } from './below.js';
import { reserveHeadroom } from './headroom.js';
import { pauseByShim } from './pause.js';
import type { RunState } from './run-state.js';

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
  /** The last link that can be compared with: the fork's snapshot, or the branch before. */
  #previous: Manifest;
  /** How many of the frozen overlays that link holds. */
  #covered = 0;
  /** The overlay that each link of this source's ends with. */
  readonly #nodes = new Map<string, string>();
  readonly #overlays: VmmDisks;
  /** Branches queue: the shim holds one capture at a time. */
  #last: Promise<unknown> = Promise.resolve();
  readonly #stop = new AbortController();
  /** Memory that is reserved for the clone of the branch under way. */
  #headroom: Disposable | null = null;

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
    const { chain, pin } = await this.#comparable();
    using _pin = pin;
    await this.#shortenDisks(chain);
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

  /**
   * The chain of the previous link; where that is gone, of the snapshot that the source was forked from, which its life keeps. One that is as
   * long as can be is flattened first.
   */
  async #comparable(): Promise<{ chain: Chain; pin: Disposable }> {
    const { store, manifest } = this.#source;
    try {
      await store.inspect(await store.manifest(this.#previous.id));
      return await this.#short(this.#previous.id);
    } catch (error) {
      if (!(error instanceof EngineError) || this.#previous.id === manifest.id) throw error;
      this.#previous = manifest;
      this.#covered = 0;
      return await this.#short(manifest.id);
    }
  }

  async #short(id: string): Promise<{ chain: Chain; pin: Disposable }> {
    const { store } = this.#source;
    const pinned = await store.pinnedChain(id);
    const { links, disks } = pinned.chain;
    if (links.length < MOST_LINKS && disks.length < MOST_LINKS) return pinned;
    pinned.pin[Symbol.dispose]();
    await store.flatten(id);
    return await store.pinnedChain(id);
  }

  /** Lets the source's own disk stand on the file of a link that has been flattened, in the place of all overlays up to it. */
  async #shortenDisks(chain: Chain): Promise<void> {
    const flat = chain.links[0]!;
    const node = this.#nodes.get(flat.id);
    if (node === undefined || !flat.files.disk.whole) return;
    const path = join(this.#source.store.directory(flat.id), flat.files.disk.name);
    const replaced = await this.#overlays.standOn(path, node);
    this.#covered -= replaced - 1;
    this.#nodes.delete(flat.id);
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
        layer: join(draft.dir, 'layer'),
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
      const disks = await this.#overlays.collect(this.#covered, draft.dir);
      const state = await readState(join(vmm.dir, STATE_FILE));
      this.#nodes.set(options.snapshotId, disk.below);
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
      const [stateEntry, parts] = await Promise.all([
        sealPart(join(draft.dir, 'state'), 'state', signal),
        full ? this.#flat(held, layer, origin) : this.#linked(held, origin),
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
      this.#previous = written;
      this.#covered += disks.length;
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

  /** A snapshot as a layer over the previous link. */
  async #linked({ draft, disks }: Held, origin: BranchOrigin): Promise<Parts> {
    const { signal } = this.#stop;
    const [memory, ...sealed] = await Promise.all([
      sealPart(join(draft.dir, 'layer'), 'layer', signal),
      ...disks.map(async ({ name, whole }) => ({
        ...(await sealPart(join(draft.dir, name), name, signal)),
        ...(whole && { whole }),
      })),
    ]);
    const disk = sealed.pop()!;
    return { memory, disk, branch: { ...origin, lowerDisks: sealed } };
  }

  /** A snapshot that stands alone, from the layer that was captured and what is below it. */
  async #flat({ draft, chain, disks }: Held, layer: CapturedLayer, origin: BranchOrigin): Promise<Parts> {
    const { manifest } = this.#source;
    const { memoryBytes, diskBytes } = manifest;
    const above = disks.map(({ name, whole }) => ({
      path: join(draft.dir, name),
      format: whole ? ('raw' as const) : ('qcow2' as const),
    }));
    const whole = above.findLastIndex(({ format }) => format === 'raw');
    const layers = [...chain.links.slice(1).map((link) => link.branch!.extents), layer.extents];
    const map = mergeLayers(memoryBytes, layers);
    const source = {
      memoryBytes,
      diskBytes,
      map,
      files: [...chain.files.map(({ path }) => path), join(draft.dir, 'layer')],
      disks: whole >= 0 ? above.slice(whole) : [...chain.disks, ...above],
    };
    // What is below may be flattened meanwhile: the files of this chain stay until then.
    using _pin = this.#source.store.reading(chain.links.map(({ id }) => id));
    const parts = await writeFlat(draft.dir, source, this.#stop.signal);
    await Promise.all(['layer', ...disks.map(({ name }) => name)].map((name) => rm(join(draft.dir, name))));
    return { ...parts, branch: flatOrigin(origin, map, chain.links[0]!, layer.bytes) };
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

/** What of a snapshot depends on whether it stands alone. */
interface Parts {
  memory: Manifest['files']['memory'];
  disk: Manifest['files']['disk'];
  branch: BranchOrigin;
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
