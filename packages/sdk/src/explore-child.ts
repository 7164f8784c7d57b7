/** One child of an exploration: its command, and its score. */
import type { Readable } from 'node:stream';
import { ForkdError } from './errors.js';
import type { ExploreInput, ExploreOptions, ExploreResult } from './explore-types.js';
import type { Sandbox } from './sandbox.js';

/** A child, and what it gets. */
export interface ExploreChild {
  index: number;
  sandbox: Sandbox;
  input: ExploreInput;
}

/**
 * Runs the command in a child and waits for its end; then its score command, where it has exited 0.
 *
 * @param enough aborted when no further result is needed: the command is killed, the child `cancelled`
 */
export async function exploreChild(
  { index, sandbox, input }: ExploreChild,
  options: ExploreOptions,
  enough: AbortSignal,
): Promise<ExploreResult> {
  const { command, cwd, user, timeoutSecs, onOutput, signal } = options;
  const stop = signal ? AbortSignal.any([signal, enough]) : enough;
  const began = performance.now();
  const base = { ...nothing, index, sandbox };
  try {
    const { stdin, env } = input;
    const hasInput = stdin !== undefined;
    const process = await sandbox.run(command, {
      cwd,
      user,
      timeoutSecs,
      env,
      stdin: hasInput,
      signal: stop,
    });
    process.stdin?.end(stdin);
    process.stdout.on('data', (bytes: Buffer) => onOutput?.(index, 'stdout', bytes));
    process.stderr?.on('data', (bytes: Buffer) => onOutput?.(index, 'stderr', bytes));
    const exit = await process.wait();
    await Promise.all([drained(process.stdout), drained(process.stderr)]);
    const durationMs = performance.now() - began;
    const { exitCode } = exit;
    const [memoryBytes, score] = await Promise.all([
      sandbox.info(stop).then(
        (info) => info.memory_bytes,
        () => undefined,
      ),
      exitCode === 0 ? scoreOf(sandbox, options, stop) : undefined,
    ]);
    const state = exitCode === 0 ? 'ok' : 'failed';
    return { ...base, state, exit, exitCode, durationMs, memoryBytes, score };
  } catch (error) {
    const durationMs = performance.now() - began;
    if (enough.aborted) return { ...base, state: 'cancelled', durationMs };
    const known = error instanceof ForkdError ? error : undefined;
    // When the caller has given up, that is what the exploration ends with.
    if (known === undefined && !stop.aborted) throw error;
    return { ...base, state: 'error', durationMs, error: known };
  }
}

/** A child that could not be started. */
export function notStarted(
  index: number,
  failure: { error: string; code: string; remedy: string } | undefined,
): ExploreResult {
  const error = new ForkdError({
    code: failure?.code ?? 'fork_failed',
    message: failure?.error ?? 'it could not be started',
    remedy: failure?.remedy ?? 'See "forkd doctor".',
    status: 500,
    kind: 'failed',
  });
  return { ...nothing, index, sandbox: undefined, state: 'error', error };
}

/** What is not known of a child that has not ended by itself. */
const nothing = {
  exit: undefined,
  exitCode: undefined,
  durationMs: 0,
  memoryBytes: undefined,
  score: undefined,
  error: undefined,
};

async function scoreOf(
  sandbox: Sandbox,
  { score, cwd, user }: ExploreOptions,
  signal: AbortSignal,
): Promise<number | null | undefined> {
  if (score === undefined) return undefined;
  const { stdout, exit_code } = await sandbox.exec(score, { cwd, user, signal });
  const last = stdout.trim().split('\n').at(-1)?.trim() ?? '';
  const value = Number(last);
  return exit_code === 0 && last !== '' && Number.isFinite(value) ? value : null;
}

/** Resolves when the last byte has been taken. */
function drained(stream: Readable | null): Promise<void> {
  if (stream === null || stream.readableEnded || stream.destroyed) return Promise.resolve();
  return new Promise((resolve) => {
    stream.once('end', resolve).once('close', resolve);
  });
}
