/** What a build needs of an engine: a machine to build in, and a snapshot of it. */
import type { AgentSession } from '../agent/index.js';
import type { VmmExit } from '../shim/index.js';
import type { Manifest } from '../snapshot/manifest.js';
import type { LogFunction } from '../types.js';
import type { SetUpDisks } from './set-up-disks.js';

export interface BuildContext {
  home: string;
  nativeDir: string;
  setUpDisks: SetUpDisks;
  log?: LogFunction;
}

/** The microVM in which a template is built. */
export interface BuilderMachine extends AsyncDisposable {
  readonly session: AgentSession;
  /** Stops the vCPUs, saves the device state, kills the VMM. */
  capture(): Promise<void>;
  consoleTail(): Promise<string>;
  readonly exited: Promise<VmmExit>;
  /** From the VMM's start until the agent answered, ms. */
  readonly bootMs: number;
}

export interface BootSpec {
  /** Gets `memory` and `state`; has `disk`. */
  workDir: string;
  memoryBytes: number;
  vcpus: number;
  kernel: { vmlinuz: string; vmlinux: string | null };
  initrd: string;
  image: string;
  disk: string;
  signal?: AbortSignal;
}

export interface CommitSpec {
  workDir: string;
  template: Manifest['template'];
  image: { name: string; sha256: string; bytes: number };
  kernel: { version: string; sha256: string };
  memoryBytes: number;
  vcpus: number;
  diskBytes: number;
  /** Asked for when the files are written. */
  build: () => Manifest['build'];
}

/** What this host can build with. */
export interface PreparedHost {
  host: BuilderHost;
  /** The snapshot that the tag points to, where this host can run it. */
  current: Manifest | null;
  /** Accelerator, and why; for people. */
  found: string;
  /** It had been found out before. */
  remembered: boolean;
}

export interface BuilderHost {
  boot(spec: BootSpec): Promise<BuilderMachine>;
  /** Turns workDir/{memory,state,disk} into a snapshot, flushed and renamed. */
  commit(spec: CommitSpec): Promise<Manifest>;
  /** Engine, version, accelerator, CPU: what a snapshot depends on besides its template. JSON. */
  pin(): Promise<unknown>;
}
