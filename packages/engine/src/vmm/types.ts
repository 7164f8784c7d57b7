/**
 * What the engine asks of a VMM: one interface, a driver for each engine. Whatever is above it does not know which one runs a sandbox.
 * Capture and graft of memory are the shim's, for any of them.
 */
import type { Duplex } from 'node:stream';
import type { AgentSession } from '../agent/index.js';
import type { VmmUser } from '../machine/run-directory.js';
import type { GraftExtent } from '../memory/index.js';
import type {
  FrozenCapture,
  PauseScript,
  RamRange,
  ResumeRecipe,
  Shim,
  ShimAbilities,
  VmmExit,
} from '../shim/index.js';
import type { DiskLink, MachinePin } from '../snapshot/index.js';
import type { Accelerator, EngineName } from '../types.js';

/** What a machine's device state is tied to: a child is made of the same shape as its template. */
export interface MachineShape {
  accelerator: Accelerator;
  cpuModel: string;
  memoryBytes: number;
  vcpus: number;
}

/** What a child is loaded from. */
export interface LoadSource {
  /** Memory files, base first: absolute paths. */
  files: readonly { path: string; bytes: bigint }[];
  extents: readonly GraftExtent[];
  /** Device state as the engine wrote it. */
  state: Buffer;
  /** The file that it is from: absolute path. */
  statePath: string;
  /** Files of the disk, base first: absolute paths. */
  disks: readonly DiskLink[];
}

/** What a load took, ms, and where it put guest RAM. */
export interface Loaded {
  graftMs: number;
  loadMs: number;
  ram: RamRange[];
}

/** What every VMM is started with. */
export interface VmmHost {
  /** The engine's program: absolute path. */
  binary: string;
  shimBinary: string;
  abilities: ShimAbilities;
  user: VmmUser | undefined;
}

/** A VMM that is to wait for a snapshot. */
export interface WaitingSpec extends VmmHost {
  /** Its run directory: made, empty. */
  dir: string;
  shape: MachineShape;
  /** The read-only image: absolute path. */
  image: string;
  diskBytes: number;
}

/** What a template's machine is booted from. */
export interface BootSpec extends Omit<VmmHost, 'binary'> {
  /** Directory of its own; memory, state and console come to lie in it. `disk` lies there already. */
  workDir: string;
  shape: MachineShape;
  /** Absolute paths. */
  kernel: { vmlinuz: string; vmlinux: string | null };
  initrd: string;
  image: string;
  tscKhz: number;
  signal?: AbortSignal;
  timeoutMs?: number;
}

/** A machine that was booted to be captured. */
export interface BootedMachine extends AsyncDisposable {
  readonly session: AgentSession;
  readonly exited: Promise<VmmExit>;
  readonly bootMs: number;
  /** Stops the vCPUs, saves `state` (and `memory`) in the work directory, kills the VMM. Its session must be closed. */
  capture(): Promise<void>;
  consoleTail(): Promise<string>;
}

/** Names in a template's work directory, by which its build takes them. */
export const captured = { memory: 'memory', state: 'state', disk: 'disk' } as const;

/** `ended`: the guest has shut down, and the VMM waits for somebody to read its last words. Other words are the engine's own. */
export type VmmState = 'running' | 'paused' | 'ended' | (string & {});

/** How long a pause was, as the engine tells. */
export interface PauseClock {
  /** From the last guest instruction before the pause to the first after it, ms. */
  ms(frozen: FrozenCapture): Promise<number>;
}

/** The disk that a sandbox writes to, as branches see it. */
export interface VmmDisks {
  /** Why freezing it takes so long that no pause with it is short; undefined where it does not. */
  whySlow(dir: string): Promise<string | undefined>;
  /**
   * Before the pause: makes what it needs.
   *
   * @param bytes size of the disk
   * @param dir the directory of the snapshot to be: absolute path
   */
  prepare(bytes: number, dir: string): Promise<PreparedDisk>;
  /** The pause is over: what was written before it is frozen. */
  switched(prepared: PreparedDisk): Promise<void>;
  /**
   * After the pause: what has been frozen lies in the directory of the snapshot, lowest first.
   *
   * @param covered what the previous link ends with: {@link PreparedDisk.below} of the branch that it is; none where that is no branch of this disk
   */
  collect(covered: string | undefined, dir: string): Promise<FrozenDisk[]>;
  /** A script has failed: whether it did is to be found out. */
  unknown(): void;
  /**
   * Lets the disk stand on one file in the place of all up to the frozen `node`, while the guest runs: the same bytes, fewer files to look into.
   * Does nothing where `node` is none any more.
   *
   * @param path a raw file that shows exactly what the disk up to `node` shows
   */
  standOn(path: string, node: string): Promise<void>;
  /**
   * Where there are several frozen files that the previous link does not hold (branches that were removed since), brings what they hold into
   * the file that the guest writes to, while it runs. Costs what was written.
   *
   * @param covered as with {@link collect}
   * @throws EngineError vmm_failed, timeout. The disk shows the same, and can be branched.
   */
  gather(covered: string | undefined): Promise<void>;
}

export interface PreparedDisk {
  below: string;
  node: string;
}

/** A file of a disk in a snapshot's directory. A whole one holds all of the disk, and is raw. */
export interface FrozenDisk {
  name: string;
  whole: boolean;
}

/** One VMM with its shim: a microVM, or a process that waits for one. */
export interface Vmm extends AsyncDisposable {
  readonly engine: EngineName;
  /** Its working directory, absolute. */
  readonly dir: string;
  readonly shim: Shim;
  /** Resolves when the guest has shut itself down and the VMM is kept for its last words; rejects when the VMM is gone. */
  readonly guestEnded: Promise<void>;
  /** What resumes it, sent by its shim when the daemon is gone. */
  readonly resumeRecipe: Omit<ResumeRecipe, 'deadlineMs'>;
  /** Its directory has been renamed. */
  moved(dir: string): void;
  /** Puts a snapshot into a VMM that waits: memory, disk, device state. Paused before and after. */
  load(source: LoadSource, signal: AbortSignal): Promise<Loaded>;
  pause(signal?: AbortSignal): Promise<void>;
  resume(signal?: AbortSignal): Promise<void>;
  status(signal?: AbortSignal): Promise<VmmState>;
  /** Writes all that a template's snapshot needs, by the names of {@link captured}. The machine is paused, and of no use afterwards. */
  saveTemplate(signal?: AbortSignal): Promise<void>;
  /**
   * The pause of a branch as steps that its shim takes: the first stops it, then the disk is frozen and the device
   * state saved; those after the freeze resume it, and do nothing else.
   *
   * @throws EngineError unsupported where this host's shim cannot take them
   */
  pauseScript(disk: PreparedDisk, stateFile: string): Omit<PauseScript, 'deadlineMs'>;
  /** Makes sure, after such a pause, that the device state is what it should be. */
  checkPause(stateFile: string, frozen: FrozenCapture): Promise<void>;
  /** Watches the next pause. */
  clock(signal: AbortSignal): PauseClock;
  disks(user: VmmUser | undefined): VmmDisks;
  /** A connection to the guest's agent. */
  dialAgent(signal: AbortSignal): Promise<Duplex>;
  /** End of what the guest has printed, at most 64 KiB. */
  console(): Promise<string>;
  /** End of the name under which /proc/PID/maps has the base of a snapshot. */
  baseName(snapshotId: string): string;
  /** Asks the VMM to end by itself. The answer may be lost with it. */
  quit(timeoutMs: number): Promise<void>;
  /** Leaves it running. */
  detach(): void;
  /** Kills it and ends its shim. */
  destroy(): Promise<VmmExit>;
}

/** The part of a snapshot's pin that is the engine's. */
export type EnginePin = Pick<
  MachinePin,
  'engine' | 'engineVersion' | 'engineSha256' | 'firmware' | 'machineType' | 'cpuModel'
>;

export interface EngineBinary {
  /** Absolute, links resolved. */
  path: string;
  /** Such as 7.2.22. */
  version: string;
  sha256: string;
}

/** One engine. */
export interface VmmDriver {
  readonly engine: EngineName;
  /** @throws EngineError host_unfit when there is none that is fit */
  find(): Promise<EngineBinary>;
  pin(accelerator: Accelerator): Promise<EnginePin>;
  /** What the guest's kernel is told, but for the TSC rate. A template is built anew when it changes. */
  commandLine(accelerator: Accelerator): string;
  /** Starts a VMM that waits: no memory, no state, paused. */
  startWaiting(spec: WaitingSpec, signal: AbortSignal): Promise<Vmm>;
  /** Starts a machine; what it opens lies in its directory (see `bootMachine`). */
  startBoot(spec: BootSpec, signal: AbortSignal): Promise<Vmm>;
  /** Takes over a VMM whose shim was found again. */
  adopt(dir: string, shim: Shim, signal: AbortSignal): Promise<Vmm>;
}
