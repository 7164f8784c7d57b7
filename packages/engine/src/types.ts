/** What users of the engine see: the daemon is written against these. */
import type { AgentSession, Interpreter } from './agent/index.js';
import type { VmmExit } from './shim/index.js';
import type { Manifest } from './snapshot/manifest.js';

export const accelerators = ['kvm', 'tcg'] as const;
export type Accelerator = (typeof accelerators)[number];
export const engineNames = ['qemu', 'firecracker'] as const;
export type EngineName = (typeof engineNames)[number];

export type LogFunction = (
  level: 'debug' | 'info' | 'warn' | 'error',
  message: string,
  facts?: Record<string, unknown>,
) => void;

export interface EngineOptions {
  /** State directory, absolute. Made with mode 0700 when it does not exist. */
  home: string;
  /** Directory of the built native programs: `forkd-shim`, `forkd-agent`. */
  nativeDir: string;
  log?: LogFunction;
  /** What is made ahead of demand. Default: {@link defaultStandby}. */
  standby?: StandbyOptions;
  /** What runs new builds where a build does not say. Default: what `FORKD_ENGINE` says, else the best that works. */
  engine?: EngineName;
}

/** How many are made ahead of demand, for each machine shape and for each snapshot. 0: none. */
export interface StandbyOptions {
  process: number;
  primed: number;
}

export const defaultStandby: StandbyOptions = { process: 2, primed: 2 };

/** What waits now, and how often a fork found something. */
export interface StandbyReport {
  process: { ready: number; hits: number; misses: number };
  primed: { ready: number; hits: number; misses: number };
}

export const branchModes = ['live', 'diff', 'full'] as const;
export type BranchMode = (typeof branchModes)[number];

export interface BranchOptions {
  /** The new snapshot's id, made by the caller (so that it can journal it first). */
  snapshotId: string;
  /**
   * `live`: memory is copied after the pause; where this host does not permit it, `diff`: what changed is copied in the pause.
   * `full`: captured as with live, and the snapshot stands alone: after the pause it is written whole. Default live.
   */
  mode?: BranchMode;
  /**
   * The caller waits until the snapshot is ready in any case: so its instant may be a little later, when most of the memory has been copied, which
   * keeps the pause short. Default false.
   */
  patient?: boolean;
  signal?: AbortSignal;
}

/** A branch whose source runs again. */
export interface Branching {
  snapshotId: string;
  /** What was done. */
  mode: BranchMode;
  /** Why not `live`, where it was asked for. */
  reason?: string;
  /** From the last guest instruction before to the first after, ms. */
  pauseMs: number;
  /** The snapshot, once it is written. It is being synced then; see {@link Engine.durable}. */
  ready: Promise<BranchedSnapshot>;
}

export interface BranchedSnapshot {
  manifest: Manifest;
  /** From the source's resume until the layer was written, ms. */
  copyMs: number;
  /** Memory of the layer: bytes of its file, and bytes of guest memory that it changes. */
  physicalBytes: number;
  logicalBytes: number;
}

/** A running sandbox. */
export interface Machine {
  readonly id: string;
  readonly snapshotId: string;
  readonly vmmPid: number;
  readonly manifest: Manifest;
  readonly generation: string;
  readonly hostname: string;
  /** Milliseconds of each phase of its fork; zeros once adopted. */
  readonly timings: ForkTimings;
  /** Resolves when its VMM has ended, however. */
  readonly exited: Promise<VmmExit>;
  /** The session with its agent; opened at the first call, opened anew when it was lost. */
  session(signal?: AbortSignal): Promise<AgentSession>;
  /** A warm interpreter by name; default the template's first. EngineError interpreter_not_found. */
  interpreter(name?: string, signal?: AbortSignal): Promise<Interpreter>;
  pause(signal?: AbortSignal): Promise<void>;
  resume(signal?: AbortSignal): Promise<void>;
  /** Captures it, and lets it go on. One at a time: calls queue. */
  branch(options: BranchOptions): Promise<Branching>;
  /** End of console and of the VMM's stderr, at most 64 KiB each. */
  logs(): Promise<{ console: string; vmm: string }>;
  /** Private memory of VMM and shim, bytes (pagemap bits for guest RAM; see design section 3). */
  memoryBytes(): Promise<number>;
  /** Kills the VMM, ends the shim, removes the run directory. May be called twice. */
  destroy(): Promise<void>;
  /** Lets go of it: the sandbox runs on, to be adopted later. */
  detach(): Promise<void>;
}

export interface ForkTimings {
  spawnMs: number;
  graftMs: number;
  loadMs: number;
  helloMs: number;
  totalMs: number;
}

export interface ForkChild {
  /** sb-..., made by the caller (so that it can journal it first). */
  id: string;
  hostname: string;
  env: Record<string, string>;
  /** JSON text, readable in the guest. */
  metadata: string;
}

export interface ForkRequest {
  snapshotId: string;
  children: readonly ForkChild[];
  signal?: AbortSignal;
  /** Called as soon as each child runs or has failed. */
  onChild?: (result: ForkResult) => void;
}

export type ForkResult =
  | { ok: true; id: string; machine: Machine }
  | { ok: false; id: string; error: unknown };

export type BuildProgress =
  | {
      type: 'step';
      step: string;
      title: string;
      state: 'running' | 'cached' | 'done' | 'failed';
      detail?: string;
      ms?: number;
    }
  | { type: 'log'; step: string; text: string };

export interface BuildOptions {
  /** Name of the template, for messages and the log's name. */
  name: string;
  /** YAML text, as of a template file. */
  yaml: string;
  /** Where relative paths of `files` start: absolute. */
  dir?: string;
  noCache?: boolean;
  /** Default: that of the engine's options. */
  engine?: EngineName;
  signal?: AbortSignal;
  onProgress?: (event: BuildProgress) => void;
}

export interface BuildResult {
  snapshotId: string;
  manifest: Manifest;
  /** Nothing had changed: the snapshot that existed (given as `current`) was kept. */
  cached: boolean;
  ms: number;
  logFile: string;
}

/** One prerequisite of the host, for doctor. */
export interface HostCheck {
  name: string;
  state: 'pass' | 'warn' | 'fail';
  /** What was found. */
  found: string;
  /** The command or step that mends it; absent when it passes. */
  remedy?: string;
}

export interface SnapshotSizes {
  memoryLogical: number;
  memoryPhysical: number;
  state: number;
  diskPhysical: number;
  image: number;
}

export interface Engine extends AsyncDisposable {
  readonly home: string;
  /** Every prerequisite, checked now. `prove`: also boots the guest on each engine and accelerator that can be tried and has no verdict. */
  checkHost(options?: { prove?: boolean; signal?: AbortSignal }): Promise<HostCheck[]>;
  /** Engine and accelerator that a build would use now, and why. */
  choice(signal?: AbortSignal): Promise<{ engine: EngineName; accelerator: Accelerator; reason: string }>;
  /** Reads and checks a template; EngineError template_invalid names field and line. Returns it with defaults filled in. */
  parseTemplate(yaml: string, name: string): Promise<unknown>;
  /** `current`: the snapshot that the tag points to now, kept when nothing has changed. */
  buildTemplate(options: BuildOptions & { current?: string }): Promise<BuildResult>;
  /** Ids of the snapshots on disk. */
  listSnapshots(): Promise<string[]>;
  /** EngineError snapshot_not_found, snapshot_corrupt. */
  readManifest(snapshotId: string): Promise<Manifest>;
  snapshotDirectory(snapshotId: string): string;
  snapshotSizes(snapshotId: string): Promise<SnapshotSizes>;
  /** Why this host cannot run it; null when it can. */
  incompatibility(manifest: Manifest): Promise<string | null>;
  /** Reads every byte against its hash. */
  verifySnapshot(
    snapshotId: string,
    signal?: AbortSignal,
  ): Promise<{ problems: string[]; bytesRead: number }>;
  /**
   * Lets a branch stand alone, whatever was below it; what it shows stays the same. Returns its new manifest. One that stands alone is left as
   * it is. EngineError snapshot_not_found, snapshot_corrupt, insufficient_disk.
   */
  flattenSnapshot(snapshotId: string): Promise<Manifest>;
  /** Calls `listener` with the new manifest of each snapshot that was flattened, also by itself. */
  onFlattened(listener: (manifest: Manifest) => void): void;
  removeSnapshot(snapshotId: string): Promise<void>;
  /** Bytes on disk that would be free without these snapshots: without holes, and without what others have as well. */
  freedBytes(snapshotIds: readonly string[]): Promise<number>;
  /**
   * Removes disks of template setups, but those of these digests (`build.setUp` of a manifest) and those that a build uses now. `dryRun`: only
   * counts them, with the bytes that they have allocated.
   */
  collectSetUps(needed: ReadonlySet<string>, dryRun: boolean): Promise<{ disks: number; bytes: number }>;
  /** Resolves when it has been synced, with all that it stands on. EngineError cancelled when it is removed meanwhile, insufficient_disk. */
  durable(snapshotId: string): Promise<void>;
  /** Whether a snapshot, whose manifest was read, outlives a crash of the host. */
  isDurable(snapshotId: string): boolean;
  /** EngineError before anything has started when none can (memory, compatibility); else a result per child. */
  fork(request: ForkRequest): Promise<ForkResult[]>;
  standbyReport(): StandbyReport;
  /** Run directories on disk, by sandbox id. */
  listRunDirectories(): Promise<string[]>;
  /** Takes over a sandbox that runs. EngineError sandbox_exited when its VMM is gone (run directory kept), details.exit a VmmExit. */
  adopt(sandboxId: string): Promise<Machine>;
  /** Removes what is left of a sandbox whose VMM is gone or must go: kills by identity, ends its shim, removes the directory. */
  sweep(sandboxId: string): Promise<void>;
  /**
   * Removes half-made snapshots, images and builds of earlier lives. Returns their names. Snapshots that an earlier boot of the host may not have
   * brought to disk are read first: what is not whole is snapshot_corrupt from then on.
   */
  sweepLeftovers(): Promise<string[]>;
}
