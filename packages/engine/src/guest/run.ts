/** Runs a program of the host to its end: with a deadline, an abort signal, and the end of what it printed. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { EngineError } from '../errors.js';

export interface RunOptions {
  cwd?: string;
  /** Added to this process's environment. */
  env?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Default 60000. */
  timeoutMs?: number;
  /** Time between SIGTERM and SIGKILL when it has to be stopped, ms. Default 2000; longer for what cleans up after itself. */
  graceMs?: number;
  /** Bytes for its standard input; without, it reads the end of file at once. */
  input?: Buffer | AsyncIterable<Buffer>;
  /** Whole lines of standard error, and of standard output unless `collect` is set. */
  onLine?: ((line: string) => void) | undefined;
  /** Keep standard output and return it. At most 64 MiB. */
  collect?: boolean;
}

/** What it printed, for messages: the last 8 KiB of both streams. */
const TAIL_BYTES = 8192;
const COLLECT_BYTES = 64 * 1024 * 1024;

/** A program could not be started, failed, or took too long. */
export class RunError extends Error {
  /** Program and its arguments. */
  readonly command: readonly string[];
  /** End of its output. */
  readonly output: string;
  /** `missing`: there is no such program. */
  readonly kind: 'missing' | 'failed' | 'timeout';

  constructor(
    kind: RunError['kind'],
    command: readonly string[],
    problem: string,
    output: string,
    cause?: unknown,
  ) {
    const last = output.trimEnd().split('\n').slice(-3).join(' | ');
    super(`${command[0]} ${problem}${last === '' ? '' : `: ${last}`}`, { cause });
    this.name = 'RunError';
    this.kind = kind;
    this.command = command;
    this.output = output;
  }
}

/**
 * The environment of host programs: one language, and the system's own directories first. A user's PATH may lack /usr/sbin, and
 * may put an interpreter of his before the one that the system's scripts were written for.
 */
export function hostEnvironment(extra: Record<string, string> = {}): NodeJS.ProcessEnv {
  const system = ['/usr/sbin', '/usr/bin', '/sbin', '/bin', '/usr/local/sbin', '/usr/local/bin'];
  const own = (process.env.PATH ?? '').split(':').filter((dir) => dir !== '' && !system.includes(dir));
  return {
    ...process.env,
    PATH: [...system, ...own].join(':'),
    LC_ALL: 'C.UTF-8',
    DEBIAN_FRONTEND: 'noninteractive',
    ...extra,
  };
}

/**
 * Runs a program in a process group of its own and waits for its end.
 *
 * @returns standard output when `collect` is set, else an empty buffer
 * @throws RunError when it cannot be started, ends otherwise than with 0, or passes its deadline; EngineError `cancelled` when
 * the signal aborts. Its whole group is gone by then.
 */
export async function run(
  program: string,
  args: readonly string[],
  options: RunOptions = {},
): Promise<Buffer> {
  throwIfCancelled(options.signal, program);
  const command = [program, ...args];
  const child = spawn(program, args, {
    cwd: options.cwd,
    env: hostEnvironment(options.env),
    detached: true,
    stdio: [options.input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
  });
  let tail = '';
  const chunks: Buffer[] = [];
  let collected = 0;
  let stopped: 'timeout' | 'cancelled' | 'overflow' | undefined;
  const stop = (why: NonNullable<typeof stopped>) => {
    stopped ??= why;
    endGroup(child, options.graceMs ?? 2000);
  };
  const lines = [lineSplitter(options.onLine), lineSplitter(options.onLine)] as const;
  const keep = (text: string) => {
    tail = (tail + text).slice(-TAIL_BYTES);
  };
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    keep(text);
    lines[0](text);
  });
  if (options.collect) {
    child.stdout?.on('data', (chunk: Buffer) => {
      collected += chunk.length;
      if (collected > COLLECT_BYTES) stop('overflow');
      else chunks.push(chunk);
    });
  } else {
    child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      keep(text);
      lines[1](text);
    });
  }
  const onAbort = () => stop('cancelled');
  options.signal?.addEventListener('abort', onAbort, { once: true });
  const timeoutMs = options.timeoutMs ?? 60_000;
  const timer = setTimeout(() => stop('timeout'), timeoutMs);
  try {
    const closed = once(child, 'close') as Promise<[number | null, NodeJS.Signals | null]>;
    const fed = options.input === undefined ? undefined : feed(child, options.input);
    // A source that breaks must end the program too: it would wait for the rest.
    fed?.catch(() => endGroup(child, options.graceMs ?? 2000));
    const [code, signal] = await closed;
    if (stopped === 'cancelled') throwIfCancelled(options.signal, program);
    if (stopped === 'timeout')
      throw new RunError('timeout', command, `took longer than ${timeoutMs / 1000} s`, tail);
    if (stopped === 'overflow')
      throw new RunError('failed', command, `printed more than ${COLLECT_BYTES} bytes`, tail);
    await fed;
    if (code !== 0)
      throw new RunError(
        'failed',
        command,
        code === null ? `ended by ${signal}` : `exited with ${code}`,
        tail,
      );
    return Buffer.concat(chunks);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      throw new RunError('missing', command, 'is not installed', '', error);
    throw error;
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener('abort', onAbort);
    signalGroup(child, 'SIGKILL');
  }
}

/** Writes all input; a program that closes its input early is no fault of ours. */
async function feed(child: ChildProcess, input: Buffer | AsyncIterable<Buffer>): Promise<void> {
  try {
    await pipeline(Readable.from(Buffer.isBuffer(input) ? [input] : input), child.stdin!);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EPIPE' && code !== 'ECONNRESET' && code !== 'ERR_STREAM_PREMATURE_CLOSE') throw error;
  }
}

/** Ends a process group: first asked, then, after a grace time, made. */
function endGroup(child: ChildProcess, graceMs: number): void {
  signalGroup(child, 'SIGTERM');
  const timer = setTimeout(() => signalGroup(child, 'SIGKILL'), graceMs);
  child.once('close', () => clearTimeout(timer));
}

function signalGroup(child: ChildProcess, signal: NodeJS.Signals): void {
  if (child.pid === undefined) return;
  try {
    process.kill(-child.pid, signal);
  } catch {
    // The group is gone.
  }
}

function lineSplitter(onLine: ((line: string) => void) | undefined): (text: string) => void {
  let rest = '';
  return (text) => {
    if (!onLine) return;
    const parts = (rest + text).split(/\r?\n/);
    rest = (parts.pop() ?? '').slice(-TAIL_BYTES);
    for (const line of parts) onLine(line);
  };
}

/** Throws EngineError `cancelled` when the signal has aborted. */
export function throwIfCancelled(signal: AbortSignal | undefined, what: string): void {
  if (signal?.aborted) throw new EngineError('cancelled', `${what} was cancelled`, { cause: signal.reason });
}

/** The end of a program's output where the error is one of a program, else its message. */
export function outputOf(error: unknown): string {
  if (error instanceof RunError) return error.output === '' ? error.message : error.output;
  return error instanceof Error ? error.message : String(error);
}
