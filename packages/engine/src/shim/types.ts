import type { shimLanguages } from '@forkd/wire';
import type { GraftExtent, LayerExtent } from '../memory/index.js';

/** How a VMM is started. */
export interface ShimSpec {
  /** Absolute path of the run directory. It becomes the working directory of the VMM; it holds shim.sock, shim.json and vmm.log. */
  dir: string;
  /** The VMM's program (absolute) and arguments. `@fd:NAME@` in an argument becomes the number of a listening socket that the shim made. */
  argv: readonly string[];
  /** Unix sockets that the shim creates in `dir` (mode 0600), listens on, and hands to the VMM as descriptors. */
  sockets: readonly string[];
  /** The VMM runs as this user and group, where the shim may change it; without: as the shim. */
  uid?: number;
  gid?: number;
  /** The VMM sees a /dev/kvm of its own, which its user may open though the host's is closed to it. Takes `uid`. Default false. */
  ownKvm?: boolean;
  /**
   * The VMM's own seccomp filter lets socketpair, recvmsg, mmap, madvise, munmap and close pass, so that grafts can map where no filter may
   * be suspended. Default: true for `qemu-system-*`, whose filter lists what it denies.
   */
  filterAllowsMaps?: boolean;
  // RLIMIT_NOFILE etc. stay; the VMM's environment is empty but for PATH and LC_ALL=C.
}

/** A file that a VMM maps as guest memory: absolute path, and bytes when it was mapped. */
export interface MappedFile {
  path: string;
  bytes: bigint;
}

/** Why a page of them could not be had. */
export type MemoryFault =
  | { kind: 'cut_short'; path: string; bytes: number; now: number }
  | { kind: 'disk_full'; path: string; freeBytes: number }
  | { kind: 'unknown'; paths: string[] };

/** How a VMM ended. `unknown`: its shim had died; never taken for success. */
export type VmmExit =
  | { kind: 'exited'; code: number; lastWords: string }
  /** `memoryFault`: of SIGBUS, what is known of the page that could not be had. */
  | { kind: 'signaled'; signal: string; lastWords: string; memoryFault?: MemoryFault }
  | { kind: 'unknown'; lastWords: string };

/** What the shim found it may do, proven on a throw-away child at its start. */
export interface ShimAbilities {
  /** Injection into a VMM with a seccomp filter works: grafts by mapping, live branches. */
  injection: boolean;
  /** Why not. */
  reason?: string;
  /** Whether it can drop the VMM to another user. */
  changeUser: boolean;
  /** Injection of calls that the VMM's own filter lets pass works: grafts by mapping into QEMU, though no live branches. */
  attach?: boolean;
}

/** Host addresses of guest RAM in a VMM, in guest order. */
export interface RamRange {
  /** First byte in guest RAM. */
  guestOffset: bigint;
  length: bigint;
  /** Where it is mapped in the VMM. */
  address: bigint;
}

export interface GraftRequest {
  /** Guest RAM as mapped now; found by name in /proc/PID/maps, see `findRam`. */
  ram: readonly RamRange[];
  /** Absolute paths of the snapshot's files, base first; opened O_RDONLY by the shim. */
  files: readonly { path: string; bytes: bigint }[];
  extents: readonly GraftExtent[];
}

/** Sent to the VMM's second monitor if the daemon's connection closes or the deadline passes while it is armed. */
export interface ResumeRecipe {
  /** Name of a socket in the run directory. */
  socket: string;
  /** Bytes sent one after another; before each the shim waits for a line of the VMM (QMP greeting, then answers). */
  lines: readonly string[];
  /** False where the VMM says nothing before the first (HTTP). Default true. */
  greets?: boolean;
  deadlineMs: number;
}

/** The pause of a branch, which the shim makes by itself: no round trip to the daemon is in it. */
export interface PauseScript {
  /** Name in the run directory of the VMM's socket. */
  socket: string;
  /** QMP, or HTTP/1.1. Default `lines`. */
  speaks?: keyof typeof shimLanguages;
  /** Each step is taken when the one before is answered; none of `before` after one was refused, all of `after` in any case. */
  before: readonly PauseStep[];
  after: readonly PauseStep[];
  /**
   * A path that the last command of `before` ends by opening: memory is frozen where the VMM's main thread enters that open. Without: after
   * `before`.
   */
  freezeAt?: string;
  /** How long it may take until `after` is sent. */
  deadlineMs: number;
}

/** A command to the VMM, or a copy of a disk: `copy` a name in the run directory, `to` an absolute path that is not there yet. */
export type PauseStep = string | { copy: string; to: string };

/** What is to be captured. */
export interface CapturePlan {
  ram: readonly RamRange[];
  /** `live`: copied after the pause, from a clone. `diff`: copied in the pause. */
  mode: 'live' | 'diff';
  /**
   * Of `live`: the pause may come later, once most is copied, so that it is short however much the source has for itself; where the source writes
   * too fast for that, from a clone. Default false.
   */
  patient?: boolean;
  /** What the source's previous link shows; it must be `ready`. Pages equal to it are left out. The plan of its graft serves. */
  below: {
    files: readonly { path: string; bytes: bigint }[];
    extents: readonly GraftExtent[];
    /** How many of `files`, from the base up, the source itself was forked from. */
    origin: number;
    /** Of the capture of this source that it shows. Where that was the last one, and writes are noticed, only what was written since is compared. */
    id?: string;
  };
  /** Absolute path of the layer: a file that does not exist yet. */
  layer: string;
  /** By which a later capture may say that it is compared with this one. */
  id?: string;
  /** From the freeze to the copy's begin, at most; the clone is killed then. Default 60000. */
  timeoutMs?: number;
}

/** A capture that is ready for the pause. */
export interface PreparedCapture {
  /** `diff` where injection is not permitted. */
  mode: 'live' | 'diff';
  /** Why not `live`, where it was asked for. */
  reason?: string;
  /** Guest RAM that the source has for itself now: what is compared, and how much its cgroup may grow while a clone lives. */
  privateBytes: number;
}

export interface FrozenCapture {
  ms: number;
  /** Of each step of the script, the freeze between `before` and `after`, ms; with `freezeAt` it is one with the last of `before`. */
  steps: number[];
  /** What the VMM answered to the command that was frozen at `freezeAt`: HTTP status, and body. */
  answer: { status: number; text: string };
}

export interface CapturedLayer {
  extents: LayerExtent[];
  /** Of the file. Not synced. */
  bytes: number;
  /** Pages looked at, and those of them that showed what is below. */
  comparedPages: number;
  unchangedPages: number;
  ms: number;
}

/** The parent of one VMM, reached over its control socket. */
export interface Shim {
  readonly pid: number;
  /** Field 22 of /proc/PID/stat. */
  readonly startTime: bigint;
  readonly vmmPid: number;
  readonly vmmStartTime: bigint;
  readonly abilities: ShimAbilities;
  /** Says that the run directory has been renamed: whoever has to find the shim again looks there. */
  moved(dir: string): void;
  /** Resolves when the VMM has ended. */
  readonly exited: Promise<VmmExit>;
  /** Says which files the VMM maps as guest memory: an end by SIGBUS is explained by them. A graft says it by itself. */
  maps(files: readonly MappedFile[]): void;
  /** Ranges of the mapping whose name contains `name` (memfd or file path) in the VMM. */
  findRam(name: string): Promise<RamRange[]>;
  /** Maps and copies snapshot memory into the paused VMM, then verifies /proc/PID/maps. Returns milliseconds. */
  graft(request: GraftRequest, signal?: AbortSignal): Promise<number>;
  armResume(recipe: ResumeRecipe): Promise<void>;
  /** False when the recipe had already been sent. */
  disarmResume(): Promise<boolean>;
  /** Before the pause: all that can be done early. One capture at a time; it is aborted when this connection closes. */
  capturePrepare(plan: CapturePlan): Promise<PreparedCapture>;
  /**
   * In the pause, after the device state was saved; with a script: the pause as a whole. When it resolves the source may resume, or runs
   * again. A failure ends the capture.
   */
  captureFreeze(pause?: PauseScript): Promise<FrozenCapture>;
  /** After the pause: writes the layer. A failure, and an abort, end the capture and remove the file. */
  captureCopy(signal?: AbortSignal): Promise<CapturedLayer>;
  /** Ends a capture in whatever state; fine when there is none. */
  captureAbort(): Promise<void>;
  /** SIGKILLs the VMM and waits for its end. */
  kill(): Promise<VmmExit>;
  /** The shim ends once its VMM has: removes its sockets. After this nothing of it is left but files in `dir`. */
  end(): Promise<void>;
  /** Leaves shim and VMM running, closes this connection. */
  detach(): void;
}

export interface StartShimOptions {
  /** Path of the shim's binary. */
  binary: string;
  signal?: AbortSignal;
  /** Default 10000. */
  timeoutMs?: number;
  /** What `probeAbilities` found; without, each shim tries by itself (some ms of its start). */
  abilities?: ShimAbilities;
  /** What the VMM maps as guest memory from its start on, see `Shim.maps`. */
  mapped?: readonly MappedFile[];
}
