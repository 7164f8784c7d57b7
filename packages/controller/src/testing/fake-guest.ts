/** A guest for tests: commands are processes of this host, files lie under a directory, the interpreter evaluates JavaScript. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createReadStream, promises as fs } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { createContext, runInContext } from 'node:vm';
import {
  AgentError,
  type AgentErrorCode,
  type AgentFiles,
  type AgentProcess,
  type AgentSession,
  type EvalOptions,
  type EvalResult,
  type FileInfo,
  type GuestPath,
  type Interpreter,
  type Outcome,
  type ProcessInfo,
  type SpawnSpec,
} from '@forkd/engine';

const codes: Readonly<Record<string, AgentErrorCode>> = {
  ENOENT: 'not_found',
  EACCES: 'not_executable',
  ENOTDIR: 'not_a_directory',
  EISDIR: 'is_a_directory',
  EEXIST: 'exists',
  ENOTEMPTY: 'not_empty',
  E2BIG: 'too_large',
};

function agentError(error: unknown): AgentError {
  const { code = '', message } = error as NodeJS.ErrnoException;
  return new AgentError(codes[code] ?? 'io', message, { errno: code });
}

const noUsage = { wallNs: 0n, userUs: 0n, systemUs: 0n, maxRssKib: 0n };

class FakeProcess implements AgentProcess {
  readonly handle: number;
  readonly pid: number;
  readonly stdin: AgentProcess['stdin'];
  readonly stdout: Readable;
  readonly stderr: Readable;
  readonly child: ChildProcess;
  readonly command: string[];
  killedFor: 'timeout' | 'cancelled' | null = null;
  readonly #ended: Promise<Outcome>;

  constructor(handle: number, child: ChildProcess, command: string[], timeoutMs: number) {
    this.handle = handle;
    this.child = child;
    this.command = command;
    this.pid = child.pid as number;
    this.stdin = child.stdin;
    this.stdout = child.stdout as Readable;
    this.stderr = child.stderr as Readable;
    const timer = timeoutMs > 0 ? setTimeout(() => this.#kill('timeout'), timeoutMs) : undefined;
    this.#ended = once(child, 'close').then(([code, signal]) => {
      clearTimeout(timer);
      return this.#outcome(code as number | null, signal as NodeJS.Signals | null);
    });
  }

  #outcome(code: number | null, signal: NodeJS.Signals | null): Outcome {
    const rest = { usage: noUsage, stdoutBytes: 0n, stderrBytes: 0n, outputHeldOpen: false };
    if (this.killedFor !== null) return { kind: this.killedFor, ...rest };
    if (signal === null) return { kind: 'exited', code: code ?? 0, ...rest };
    const number = constants.signals[signal];
    return { kind: 'signaled', signal: number, signalName: signal, coreDumped: false, ...rest };
  }

  #kill(reason: 'timeout' | 'cancelled'): void {
    this.killedFor ??= reason;
    try {
      process.kill(-this.pid, 'SIGKILL');
    } catch {
      // It has ended.
    }
  }

  async wait(signal?: AbortSignal): Promise<Outcome> {
    if (signal === undefined) return this.#ended;
    if (signal.aborted) throw new AgentError('aborted', 'aborted');
    const aborted = once(signal, 'abort').then(() => {
      throw new AgentError('aborted', 'aborted');
    });
    return Promise.race([this.#ended, aborted]);
  }

  async signal(sig: number | NodeJS.Signals, o: { all?: boolean; cancel?: boolean } = {}): Promise<void> {
    if (o.cancel) this.#kill('cancelled');
    else this.child.kill(sig);
  }

  async resize(): Promise<void> {}
  detach(): void {}
  async release(): Promise<void> {}
}

/** One guest, whose root is a directory. */
export class FakeGuest {
  readonly root: string;
  readonly processes = new Map<number, FakeProcess>();
  readonly sessionId = Buffer.alloc(16);
  readonly files: AgentFiles;
  env: Record<string, string> = {};
  #nextHandle = 1;

  constructor(root: string) {
    this.root = root;
    this.files = fakeFiles(root);
  }

  /** The part of a session that the daemon uses. */
  session(): AgentSession {
    const part = {
      sessionId: this.sessionId,
      resumed: false,
      files: this.files,
      spawn: (spec: SpawnSpec) => this.#spawn(spec),
      attach: async (handle: number) => {
        const process = this.processes.get(handle);
        if (process === undefined) throw new AgentError('no_such_process', `there is no process ${handle}`);
        return process;
      },
      ps: async () => [...this.processes.values()].map(infoOf),
      ping: async () => undefined,
      metrics: async () => ({ cpus: 1, uptimeNs: 5n, memory: { total: 7n } }),
    };
    return part as unknown as AgentSession;
  }

  /** Kills all that still runs. */
  end(): void {
    for (const process of this.processes.values()) void process.signal('SIGKILL', { cancel: true });
  }

  async #spawn(spec: SpawnSpec): Promise<AgentProcess> {
    const words = 'shell' in spec.command ? ['/bin/sh', '-c', spec.command.shell] : spec.command.map(String);
    const child = spawn(words[0] as string, words.slice(1), {
      cwd: this.root,
      env: { PATH: process.env.PATH, ...this.env, ...spec.env },
      stdio: [spec.stdin === 'pipe' || spec.pty ? 'pipe' : 'ignore', 'pipe', 'pipe'],
      detached: true,
    });
    try {
      await once(child, 'spawn');
    } catch (error) {
      throw agentError(error);
    }
    const handle = this.#nextHandle++;
    const fake = new FakeProcess(handle, child, words, spec.timeoutMs ?? 0);
    this.processes.set(handle, fake);
    return fake;
  }
}

function infoOf(process: FakeProcess): ProcessInfo {
  const running = process.child.exitCode === null && process.child.signalCode === null;
  return {
    handle: process.handle,
    pid: process.pid,
    state: running ? 'running' : 'exited',
    role: 'user',
    pty: false,
    label: '',
    command: process.command,
    ageMs: 1,
    outcome: null,
  };
}

function fakeFiles(root: string): AgentFiles {
  const at = (path: GuestPath) => join(root, path.toString());
  const stat = async (path: GuestPath): Promise<FileInfo> => {
    const s = await fs.lstat(at(path), { bigint: true });
    return {
      type: s.isDirectory() ? 'directory' : s.isSymbolicLink() ? 'symlink' : 'file',
      mode: Number(s.mode) & 0o7777,
      uid: Number(s.uid),
      gid: Number(s.gid),
      size: s.size,
      mtimeNs: s.mtimeNs,
      ino: s.ino,
      nlink: Number(s.nlink),
    };
  };
  const wrapped =
    <A extends unknown[], R>(call: (...args: A) => Promise<R>) =>
    async (...args: A): Promise<R> => {
      try {
        return await call(...args);
      } catch (error) {
        throw error instanceof AgentError ? error : agentError(error);
      }
    };
  const part = {
    stat: wrapped(stat),
    read: wrapped(async (path: GuestPath, o: { offset?: bigint | number; length?: bigint | number } = {}) => {
      const info = await stat(path);
      if (info.type === 'directory') throw new AgentError('is_a_directory', 'is a directory');
      const start = Number(o.offset ?? 0);
      const stream =
        o.length === 0n
          ? Readable.from([])
          : createReadStream(at(path), {
              start,
              ...(o.length !== undefined && { end: start + Number(o.length) - 1 }),
            });
      return { info, stream };
    }),
    write: wrapped(async (path: GuestPath, source: Readable | Buffer, o: { mode?: number } = {}) => {
      const temporary = `${at(path)}.tmp`;
      try {
        await fs.writeFile(temporary, source);
      } catch (error) {
        await fs.rm(temporary, { force: true });
        throw error;
      }
      await fs.chmod(temporary, o.mode ?? 0o644);
      await fs.rename(temporary, at(path));
      return stat(path);
    }),
    list: wrapped(async (path: GuestPath) => {
      const names = await fs.readdir(at(path));
      return Promise.all(
        names.map(async (name) => ({
          ...(await stat(join(String(path), name))),
          name,
          rawName: Buffer.from(name),
        })),
      );
    }),
    mkdir: wrapped(async (path: GuestPath, o: { parents?: boolean } = {}) => {
      await fs.mkdir(at(path), { recursive: o.parents === true });
    }),
    rename: wrapped(async (from: GuestPath, to: GuestPath) => fs.rename(at(from), at(to))),
    remove: wrapped(async (path: GuestPath, o: { recursive?: boolean } = {}) => {
      const info = await stat(path);
      if (info.type === 'directory' && !o.recursive) await fs.rmdir(at(path));
      else await fs.rm(at(path), { recursive: true });
    }),
  };
  return part as unknown as AgentFiles;
}

/** An interpreter of JavaScript that keeps its variables; `await sleep(ms)` is what a time limit can interrupt. */
export function fakeInterpreter(): Interpreter {
  let output: (text: string) => void = () => undefined;
  const context = createContext({ print: (text: unknown) => output(`${String(text)}\n`), sleep: delay });
  let last: Promise<unknown> = Promise.resolve();
  const run = async (code: string, o: EvalOptions): Promise<EvalResult> => {
    const result: EvalResult = {
      value: null,
      stdout: '',
      stderr: '',
      error: null,
      timedOut: false,
      truncated: false,
    };
    output = (text) => {
      result.stdout += text;
      o.onOutput?.('stdout', text);
    };
    try {
      const value: unknown = runInContext(code, context);
      const timer =
        o.timeoutMs === undefined
          ? new Promise(() => undefined)
          : delay(o.timeoutMs, 'timeout', { ref: false });
      const done = await Promise.race([Promise.resolve(value), timer]);
      if (done === 'timeout') {
        result.timedOut = true;
        result.error = { type: 'KeyboardInterrupt', message: '', traceback: '' };
      } else if (done !== undefined) result.value = String(done);
    } catch (error) {
      const { name, message, stack } = error as Error;
      result.error = { type: name, message, traceback: stack ?? '' };
    }
    return result;
  };
  const interpreter = {
    handle: 1,
    ready: async () => ({ language: 'javascript', version: '1' }),
    eval: (code: string, o: EvalOptions = {}) => {
      const mine = last.then(() => run(code, o));
      last = mine.catch(() => undefined);
      return mine;
    },
    identify: () => undefined,
    close: async () => undefined,
    [Symbol.asyncDispose]: async () => undefined,
  };
  return interpreter;
}
