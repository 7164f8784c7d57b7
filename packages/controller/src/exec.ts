/** Commands whose output is collected into one answer. */
import type { Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import {
  defaultMaxOutputBytes,
  defaultTimeoutSecs,
  type ExecRequest,
  type ExecResponse,
  exitCodeOf,
  type Outcome,
} from '@forkd/api';
import type { AgentProcess, Machine, Outcome as ProcessOutcome, SpawnSpec } from '@forkd/engine';
import { ApiError, commandError } from './errors.js';

/** The agent ends a command at its time limit; this much later it is taken for dead itself. */
const agentGraceMs = 15_000;
/** Output has been handed over when the end is told: the streams only have to be emptied. */
const drainMs = 2_000;

/** Fields that say what to run, of both forms of exec. */
export type CommandFields = Pick<ExecRequest, 'args' | 'shell' | 'env' | 'cwd' | 'user' | 'timeout_secs'>;

/** What the agent is told to start. @throws ApiError unless exactly one of args and shell is given. */
export function spawnSpec(machine: Machine, fields: CommandFields): SpawnSpec {
  const { args, shell, env, cwd } = fields;
  if ((args === undefined) === (shell === undefined)) {
    const problem =
      args === undefined ? 'it is missing; give args or shell' : 'give either args or shell, not both';
    throw new ApiError('invalid_argument', { field: 'args', problem });
  }
  if (args?.[0] === '') {
    throw new ApiError('invalid_argument', { field: 'args.0', problem: 'the name of the program is empty' });
  }
  const user = fields.user ?? (machine.manifest.template.user || undefined);
  return {
    command: args ?? { shell: shell as string },
    ...(env !== undefined && { env }),
    ...(cwd !== undefined && { cwd }),
    ...(user !== undefined && { user }),
  };
}

/** Milliseconds of a time limit in seconds; 0 and absence mean the default. */
export function timeoutMsOf(secs: number | undefined, defaultSecs: number): number {
  return Math.ceil((secs || defaultSecs) * 1000);
}

/** Runs a command to its end. `signal`: the caller went away; the command is killed. */
export async function execCollected(
  machine: Machine,
  request: ExecRequest,
  signal: AbortSignal,
): Promise<ExecResponse> {
  const input = inputOf(request);
  const timeoutMs = timeoutMsOf(request.timeout_secs, defaultTimeoutSecs);
  const spec = {
    ...spawnSpec(machine, request),
    timeoutMs,
    stdin: input === null ? 'none' : 'pipe',
  } as const;
  const began = performance.now();
  const process = await spawn(machine, spec, request.cwd, signal);
  const kill = () => void process.signal('SIGKILL', { all: true, cancel: true }).catch(() => undefined);
  signal.addEventListener('abort', kill, { once: true });
  if (signal.aborted) kill();
  const limit = request.max_output_bytes ?? defaultMaxOutputBytes;
  const stdout = collect(process.stdout, limit);
  const stderr = collect(process.stderr, limit);
  try {
    if (input !== null) process.stdin?.on('error', () => undefined).end(input);
    const outcome = await ended(machine, process, timeoutMs + agentGraceMs);
    await Promise.all([stdout.done, stderr.done]);
    const encoding = request.encoding ?? 'utf8';
    const told = outcomeOf(outcome);
    return {
      stdout: stdout.bytes().toString(encoding),
      stderr: stderr.bytes().toString(encoding),
      exit_code: exitCodeOf(told),
      outcome: told,
      encoding,
      stdout_truncated_bytes: stdout.dropped(),
      stderr_truncated_bytes: stderr.dropped(),
      duration_ms: performance.now() - began,
    };
  } finally {
    signal.removeEventListener('abort', kill);
    // It has ended, or nobody can say: either way its entry in the guest's table is of no more use.
    process.release().catch(() => undefined);
  }
}

/** Starts a process; errors name the command. */
export async function spawn(
  machine: Machine,
  spec: SpawnSpec,
  cwd: string | undefined,
  signal: AbortSignal,
): Promise<AgentProcess> {
  try {
    const session = await machine.session(signal);
    return await session.spawn(spec, signal);
  } catch (error) {
    const command = 'shell' in spec.command ? '/bin/sh' : String(spec.command[0]);
    throw commandError(error, machine.id, command, cwd);
  }
}

/** How a process ended, as the API says it. */
export function outcomeOf(outcome: ProcessOutcome): Outcome {
  switch (outcome.kind) {
    case 'exited':
      return { kind: 'exited', code: outcome.code };
    case 'signaled':
      return { kind: 'signaled', signal: outcome.signalName };
    default:
      return { kind: outcome.kind };
  }
}

async function ended(machine: Machine, process: AgentProcess, deadlineMs: number): Promise<ProcessOutcome> {
  const deadline = new AbortController();
  const timer = setTimeout(() => deadline.abort(), deadlineMs);
  try {
    return await process.wait(deadline.signal);
  } catch (error) {
    if (!deadline.signal.aborted) throw commandError(error, machine.id, `process ${process.pid}`, undefined);
    const problem = `it did not report the end of process ${process.pid} at its time limit`;
    throw new ApiError('guest_unreachable', { sandbox: machine.id, problem }, { cause: error });
  } finally {
    clearTimeout(timer);
  }
}

function inputOf({ stdin, stdin_encoding }: ExecRequest): Buffer | null {
  if (stdin === undefined) return null;
  if (stdin_encoding !== 'base64') return Buffer.from(stdin, 'utf8');
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(stdin) || stdin.length % 4 !== 0) {
    throw new ApiError('invalid_argument', { field: 'stdin', problem: 'it is not base64' });
  }
  return Buffer.from(stdin, 'base64');
}

interface Collected {
  done: Promise<void>;
  bytes(): Buffer;
  dropped(): number;
}

/** Keeps the first `limit` bytes of a stream and counts the rest. */
function collect(stream: Readable | null, limit: number): Collected {
  const chunks: Buffer[] = [];
  let kept = 0;
  let dropped = 0;
  if (stream === null) return { done: Promise.resolve(), bytes: () => Buffer.alloc(0), dropped: () => 0 };
  stream.on('data', (chunk: Buffer) => {
    const part = chunk.subarray(0, limit - kept);
    if (part.length > 0) chunks.push(part);
    kept += part.length;
    dropped += chunk.length - part.length;
  });
  const end = finished(stream, { writable: false }).catch(() => undefined);
  return {
    // Waited for only once the process has ended; a stream that never ends must not hold up the answer.
    get done() {
      return Promise.race([end, new Promise<void>((resolve) => setTimeout(resolve, drainMs).unref())]);
    },
    bytes: () => Buffer.concat(chunks),
    dropped: () => dropped,
  };
}
