/** Running the CLI as users do: as a process. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

/** Entry of the CLI. */
export const program = fileURLToPath(new URL('../../packages/cli/bin/forkd.cjs', import.meta.url));

export interface CliResult {
  code: number;
  stdout: string;
  stderr: string;
}

export interface CliOptions {
  input?: string | Buffer;
  env?: Record<string, string | undefined>;
  cwd?: string;
  /** Milliseconds; then it is killed and the call fails. */
  timeoutMs?: number;
  /** Program and arguments that run it, for limits that it and what it starts are to have. */
  wrap?: readonly string[];
}

/**
 * Runs `forkd ARGS` to its end.
 *
 * @example const { stdout } = await forkd(['fork', 'busybox'])
 */
export async function forkd(args: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  const child = startForkd(args, options);
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  child.stdout.on('data', (chunk: Buffer) => out.push(chunk));
  child.stderr.on('data', (chunk: Buffer) => err.push(chunk));
  child.stdin.on('error', () => undefined);
  child.stdin.end(options.input);
  const code = await exitOf(child, args, options.timeoutMs ?? 50_000);
  return { code, stdout: Buffer.concat(out).toString('utf8'), stderr: Buffer.concat(err).toString('utf8') };
}

/** Runs `forkd ARGS --json`, which must succeed, and parses its answer. */
export async function forkdJson<T>(args: readonly string[], options: CliOptions = {}): Promise<T> {
  const [command = '', ...rest] = args;
  const isGroup = command === 'template' || command === 'snapshot';
  const full = isGroup ? [command, rest[0] ?? '', '--json', ...rest.slice(1)] : [command, '--json', ...rest];
  const result = await forkd(full, options);
  if (result.code !== 0) throw new Error(`forkd ${full.join(' ')} exited ${result.code}: ${result.stderr}`);
  return JSON.parse(result.stdout) as T;
}

/** Starts `forkd ARGS`; the caller waits for its end. */
export function startForkd(
  args: readonly string[],
  options: CliOptions = {},
): ChildProcessWithoutNullStreams {
  const [command = '', ...rest] = [...(options.wrap ?? []), process.execPath, program, ...args];
  return spawn(command, rest, {
    env: { ...process.env, ...options.env },
    cwd: options.cwd,
    stdio: ['pipe', 'pipe', 'pipe'],
  });
}

function exitOf(child: ChildProcessWithoutNullStreams, args: readonly string[], ms: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const deadline = setTimeout(() => {
      child.kill('SIGKILL');
      reject(new Error(`forkd ${args.join(' ')} took longer than ${ms} ms`));
    }, ms);
    child.on('error', reject);
    child.on('close', (code, signal) => {
      clearTimeout(deadline);
      resolve(code ?? (signal === null ? -1 : -2));
    });
  });
}
