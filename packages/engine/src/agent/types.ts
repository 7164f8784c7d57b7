import type { Duplex, Readable, Writable } from 'node:stream';

/** Opens one connection to the agent. Called again after a connection broke. */
export type AgentDialer = (signal: AbortSignal) => Promise<Duplex>;

export interface OpenSessionOptions {
  dial: AgentDialer;
  /** 16 bytes. A known id resumes that session where the guest still holds it; default: a random one. */
  sessionId?: Buffer;
  /** Ends the session when aborted; guest processes go on. */
  signal?: AbortSignal;
  /** How long the first answer may take, in milliseconds. Default 30000. */
  connectTimeoutMs?: number;
  /** How long a broken connection is dialled again before the session is given up. Default 10000. */
  reconnectTimeoutMs?: number;
  /**
   * While something is asked of the guest and no byte has come for `idleMs`, it is pinged; without an answer in `answerMs` the
   * connection is given up and dialled again. Default 5000 and 10000.
   */
  keepalive?: { idleMs?: number; answerMs?: number };
}

/** A path in the guest. Linux names are bytes: a Buffer carries those that are not UTF-8. */
export type GuestPath = string | Buffer;

/** Tells a machine who it is. Sent at each fork, before anything else runs. */
export interface Hello {
  /** 32 hex digits. */
  generation: string;
  /** 32 to 512 bytes, credited to the guest kernel's generator. */
  entropy: Buffer;
  /** Nanoseconds since 1970. */
  wallClockNs: bigint;
  hostname: string;
  /** 32 hex digits. */
  machineId: string;
  /** Added to the environment of every process started from now on. */
  env: Record<string, string>;
  /** Any JSON text; readable in the guest at /run/forkd/metadata.json. */
  metadata: string;
  thaw: { interpreters: boolean; user: boolean };
}

export interface HelloReply {
  protocolVersion: number;
  /** Guest CLOCK_MONOTONIC when hello was done, in nanoseconds. */
  monotonicNs: bigint;
  /** Time the guest spent on it, hooks included, in nanoseconds. */
  tookNs: bigint;
  hooks: { name: string; outcome: 'ok' | 'failed' | 'timeout'; code: number }[];
}

export interface SpawnSpec {
  command: readonly (string | Buffer)[] | { shell: string };
  /** Added to, or replacing, what hello and the guest's defaults set. */
  env?: Record<string, string>;
  /** Default: the user's home. */
  cwd?: GuestPath;
  /** `name`, `uid`, or `uid:gid`. Default root. */
  user?: string;
  pty?: { rows: number; cols: number };
  /** Default `none`: reads see the end of file at once. A pty always has input. */
  stdin?: 'none' | 'pipe';
  /** The whole group is killed then. 0 or absent: no limit. At most 2^32 - 1. */
  timeoutMs?: number;
  role?: 'user' | 'interpreter';
  /** Free text shown by `ps`, at most 255 bytes. */
  label?: string;
}

export interface ResourceUse {
  /** Wall time between start and end, in nanoseconds. */
  wallNs: bigint;
  userUs: bigint;
  systemUs: bigint;
  maxRssKib: bigint;
}

export type OutcomeKind =
  | { kind: 'exited'; code: number }
  | { kind: 'signaled'; signal: number; signalName: string; coreDumped: boolean }
  | { kind: 'timeout' }
  | { kind: 'oom' }
  | { kind: 'cancelled' };

/** How a process ended. Bytes written before the end are all in the streams. */
export type Outcome = OutcomeKind & {
  usage: ResourceUse;
  /** Bytes each stream carried, from the process's start. */
  stdoutBytes: bigint;
  stderrBytes: bigint;
  /** A descendant still held an output pipe after the grace period; its later output is dropped. */
  outputHeldOpen: boolean;
};

export interface AttachOptions {
  /** `kept` (default): from the oldest byte the guest still has. `now`: only what comes from here on. */
  from?: 'kept' | 'now';
  /** Take over as the reader that the process waits for; otherwise output that is not read in time is lost, and told. */
  lossless?: boolean;
  /** Take over the process's stdin. */
  stdin?: boolean;
}

export interface AgentProcess {
  readonly handle: number;
  readonly pid: number;
  readonly stdin: Writable | null;
  /** Emits `gap` {from, to} (bigint offsets) where output was lost. */
  readonly stdout: Readable;
  /** null for a pty, whose output is all in stdout. */
  readonly stderr: Readable | null;
  /** Resolves when the main process has ended and its output has been handed over: read the streams meanwhile. */
  wait(signal?: AbortSignal): Promise<Outcome>;
  /** `all` reaches every process of the group, in whatever session it hides. `cancel` kills and reports `cancelled`. */
  signal(sig: number | NodeJS.Signals, o?: { all?: boolean; cancel?: boolean }): Promise<void>;
  resize(rows: number, cols: number): Promise<void>;
  /** Stop following it; a running process goes on. */
  detach(): void;
  /** Forget it: an ended process leaves the table. A running one goes on without a handle. */
  release(): Promise<void>;
}

export interface ProcessInfo {
  handle: number;
  pid: number;
  state: 'running' | 'exited';
  role: 'user' | 'interpreter';
  pty: boolean;
  label: string;
  command: string[];
  /** Milliseconds since it was started. */
  ageMs: number;
  outcome: OutcomeKind | null;
}

export type FileType =
  | 'file'
  | 'directory'
  | 'symlink'
  | 'fifo'
  | 'socket'
  | 'block'
  | 'character'
  | 'unknown';

export interface FileInfo {
  type: FileType;
  /** Permission bits, 0 to 0o7777. */
  mode: number;
  uid: number;
  gid: number;
  size: bigint;
  mtimeNs: bigint;
  ino: bigint;
  nlink: number;
  /** What a symlink points to. */
  target?: string;
}

export interface DirectoryEntry extends FileInfo {
  name: string;
  /** The name's bytes. */
  rawName: Buffer;
}

export interface WriteOptions {
  /** Permission bits; default: those of the file replaced, else 0644. */
  mode?: number;
  uid?: number;
  gid?: number;
  /** Create missing parent directories. */
  mkdirs?: boolean;
  signal?: AbortSignal;
}

export type WatchEvent =
  | { kind: 'created' | 'modified' | 'removed' | 'attributes'; path: string; directory: boolean }
  /** `cookie` joins the two halves of one rename. */
  | { kind: 'moved_from' | 'moved_to'; path: string; directory: boolean; cookie: number }
  /** Events were lost: list the tree again. */
  | { kind: 'overflow' }
  /** The watched path itself is gone. */
  | { kind: 'gone'; path: string };

export interface Watch extends AsyncIterable<WatchEvent>, AsyncDisposable {
  close(): void;
}

export interface AgentFiles {
  read(
    path: GuestPath,
    o?: { offset?: bigint | number; length?: bigint | number; signal?: AbortSignal },
  ): Promise<{ info: FileInfo; stream: Readable }>;
  /** Replaces the file atomically; on failure the old one stays. */
  write(path: GuestPath, source: Readable | Buffer, o?: WriteOptions): Promise<FileInfo>;
  stat(path: GuestPath, o?: { follow?: boolean }): Promise<FileInfo>;
  /** Entries in directory order, without `.` and `..`. */
  list(path: GuestPath, o?: { signal?: AbortSignal }): Promise<DirectoryEntry[]>;
  mkdir(path: GuestPath, o?: { parents?: boolean; mode?: number }): Promise<void>;
  rename(from: GuestPath, to: GuestPath, o?: { replace?: boolean }): Promise<void>;
  remove(path: GuestPath, o?: { recursive?: boolean; force?: boolean }): Promise<void>;
  symlink(target: GuestPath, path: GuestPath): Promise<void>;
  setAttributes(
    path: GuestPath,
    o: { mode?: number; uid?: number; gid?: number; mtimeNs?: bigint },
  ): Promise<void>;
  watch(path: GuestPath, o?: { recursive?: boolean; signal?: AbortSignal }): Promise<Watch>;
}

/** Sizes in bytes. */
export interface GuestMetrics {
  uptimeNs: bigint;
  wallClockNs: bigint;
  cpus: number;
  /** CPU time of all CPUs since boot, in microseconds. */
  cpu: { userUs: bigint; systemUs: bigint; idleUs: bigint; iowaitUs: bigint; stealUs: bigint };
  /** Load averages over 1, 5 and 15 minutes. */
  load: [number, number, number];
  memory: {
    total: bigint;
    free: bigint;
    available: bigint;
    cached: bigint;
    userLimit: bigint;
    userUsed: bigint;
  };
  disk: { total: bigint; free: bigint; available: bigint };
  processes: number;
  oomKills: bigint;
}

export interface AgentSession extends AsyncDisposable {
  readonly sessionId: Buffer;
  /** True when the guest still held this session. */
  readonly resumed: boolean;
  hello(h: Hello, signal?: AbortSignal): Promise<HelloReply>;
  spawn(s: SpawnSpec, signal?: AbortSignal): Promise<AgentProcess>;
  attach(handle: number, o?: AttachOptions, signal?: AbortSignal): Promise<AgentProcess>;
  ps(): Promise<ProcessInfo[]>;
  readonly files: AgentFiles;
  /** A TCP connection to 127.0.0.1 (then ::1) inside the guest. */
  dial(port: number, signal?: AbortSignal): Promise<Duplex>;
  metrics(): Promise<GuestMetrics>;
  setTime(wallClockNs: bigint): Promise<void>;
  addEntropy(bytes: Buffer): Promise<void>;
  setHostname(name: string): Promise<void>;
  freeze(o: { interpreters: boolean; user: boolean }): Promise<void>;
  thaw(o: { interpreters: boolean; user: boolean }): Promise<void>;
  /** Flush the guest's file systems. */
  sync(): Promise<void>;
  ping(signal?: AbortSignal): Promise<void>;
  /** Kill everything, sync, and reset the machine (the VMM runs with -no-reboot). */
  poweroff(): Promise<void>;
  /** The machine is about to be paused, or to go on: while it stands still, what was asked of it waits, however long. */
  paused(paused: boolean): void;
  /** Resolves when the session has ended, for whatever reason. */
  readonly closed: Promise<void>;
  /** Ends the session; guest processes go on. */
  close(): Promise<void>;
}

export interface EvalOptions {
  /** 0 or absent: no limit. */
  timeoutMs?: number;
  /** 32 hex digits; a change makes the interpreter reseed before user code runs. Default: what hello told the guest. */
  generation?: string;
  /** Environment for this and later calls. */
  env?: Record<string, string>;
  onOutput?: (stream: 'stdout' | 'stderr', text: string) => void;
  /** Interrupts the code as ctrl-C would. */
  signal?: AbortSignal;
  /** Each of stdout, stderr and value keeps at most this many characters. Default 10 MiB. */
  maxOutput?: number;
}

export interface EvalResult {
  /** repr of the last expression; null when there is none or it is None. */
  value: string | null;
  stdout: string;
  stderr: string;
  error: { type: string; message: string; traceback: string } | null;
  timedOut: boolean;
  truncated: boolean;
}

/** Who a machine is by now: an interpreter that was copied seeds itself anew and takes this environment over, once. */
export interface MachineIdentity {
  /** 32 hex digits. */
  generation: string;
  env: Record<string, string>;
}

export interface Interpreter extends AsyncDisposable {
  readonly handle: number;
  /** Waits until it has said that it is ready, and tells what it is. */
  ready(signal?: AbortSignal): Promise<{ language: string; version: string }>;
  /** One at a time: calls queue. */
  eval(code: string, o?: EvalOptions): Promise<EvalResult>;
  /** The machine has another identity: its next evaluation is told first. */
  identify(identity: MachineIdentity): void;
  /** Stops following it; the interpreter goes on. */
  close(): Promise<void>;
}
