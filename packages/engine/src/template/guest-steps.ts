/** What a build does inside its microVM: files, setup, interpreters, warm-up, the ready check. */
import { createReadStream } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { AgentError, type AgentProcess, type AgentSession, openInterpreter } from '../agent/index.js';
import { deadline } from '../deadline.js';
import { EngineError, messageOf } from '../errors.js';
import type { HostFile } from './digest.js';
import type { CommandSpec, TemplateSpec } from './schema.js';
import type { StepContext } from './steps.js';

const INTERPRETER_READY_MS = 120_000;
const INTERPRETER_INIT_MS = 10 * 60_000;
const FILE_MS = 10 * 60_000;
const FIRST_COMMAND_MS = 60_000;
/** Between two tries of the ready check. */
const READY_RETRY_MS = 200;

/** A service or interpreter that runs on in the snapshot. */
export interface Resident {
  what: string;
  process: AgentProcess;
  /** Set when it has ended: it must not, before the capture. */
  ended: string | null;
}

export async function writeFiles(
  session: AgentSession,
  files: TemplateSpec['files'],
  hostFiles: ReadonlyMap<string, HostFile>,
  signal: AbortSignal,
): Promise<void> {
  for (const file of files) {
    const from = hostFiles.get(file.path);
    const source = 'content' in file ? Buffer.from(file.content) : createReadStream(from!.path);
    using limit = deadline(`writing ${file.path}`, FILE_MS, signal);
    try {
      await session.files.write(file.path, source, { mode: file.mode, mkdirs: true, signal: limit.signal });
    } catch (error) {
      throw new EngineError('build_failed', `${file.path}: ${messageOf(error)}`, { cause: error });
    }
  }
}

/**
 * Runs a shell command to its end.
 *
 * @throws EngineError `build_failed` when it does not exit with 0
 */
export async function runCommand(
  session: AgentSession,
  command: CommandSpec,
  context: StepContext,
  signal: AbortSignal,
): Promise<void> {
  const outcome = await runToEnd(session, command, context, signal);
  if (outcome !== null) throw new EngineError('build_failed', `${shown(command.run)} ${outcome}`);
}

/**
 * Has the kernel read a shell and a small program, and do once what it does at the first command of all: else each child does it anew, a quarter
 * of what its own first command costs. An image may have neither of them.
 */
export async function firstCommand(
  session: AgentSession,
  user: string,
  context: StepContext,
  signal: AbortSignal,
): Promise<void> {
  try {
    await runToEnd(session, { run: 'exec true', user, timeoutMs: FIRST_COMMAND_MS }, context, signal);
  } catch (error) {
    if (!(error instanceof AgentError) || error.code !== 'not_found') throw error;
  }
}

/** How it ended; null for exit code 0. */
async function runToEnd(
  session: AgentSession,
  command: CommandSpec,
  context: StepContext,
  signal: AbortSignal,
): Promise<string | null> {
  const { run, user, timeoutMs } = command;
  const process = await session.spawn(
    { command: { shell: run }, user, timeoutMs, stdin: 'none', label: 'build' },
    signal,
  );
  follow(process, context);
  const outcome = await process.wait(signal);
  await process.release();
  switch (outcome.kind) {
    case 'exited':
      return outcome.code === 0 ? null : `exited with ${outcome.code}`;
    case 'signaled':
      return `was ended by ${outcome.signalName}`;
    case 'timeout':
      return `took longer than ${timeoutMs / 1000} s`;
    case 'oom':
      return 'was killed for want of memory: give the template more "memory"';
    case 'cancelled':
      return 'was cancelled';
  }
}

/** Starts a service; it is watched until the capture. */
export async function startService(
  session: AgentSession,
  command: CommandSpec,
  context: StepContext,
  signal: AbortSignal,
): Promise<Resident> {
  const { run, user } = command;
  const process = await session.spawn(
    { command: { shell: run }, user, stdin: 'none', label: run.slice(0, 80) },
    signal,
  );
  follow(process, context);
  return watchResident(shown(run), process);
}

/**
 * Starts an interpreter, waits until it says that it is ready, and evaluates its `init`.
 *
 * @throws EngineError `build_failed` with the traceback
 */
export async function startInterpreter(
  session: AgentSession,
  spec: TemplateSpec,
  item: TemplateSpec['interpreters'][number],
  context: StepContext,
  signal: AbortSignal,
): Promise<Resident> {
  const process = await session.spawn(
    { command: item.command, user: spec.user, role: 'interpreter', stdin: 'pipe', label: item.name },
    signal,
  );
  // Its stdout is the channel, followed below; what it says else is for the log.
  process.stdout.resume();
  process.stderr?.setEncoding('utf8').on('data', (text: string) => context.output(text));
  const resident = watchResident(`interpreter ${item.name}`, process);
  await using interpreter = await openInterpreter(session, process.handle);
  {
    using limit = deadline(`the start of interpreter ${item.name}`, INTERPRETER_READY_MS, signal);
    const { language, version } = await interpreter.ready(limit.signal);
    context.line(`${item.name}: ${language} ${version}`);
  }
  if (item.init.trim() === '') return resident;
  const onOutput = (_stream: string, text: string) => context.output(text);
  const { error, timedOut } = await interpreter.eval(item.init, {
    timeoutMs: INTERPRETER_INIT_MS,
    onOutput,
    signal,
  });
  if (timedOut)
    throw new EngineError(
      'build_failed',
      `init of ${item.name} took longer than ${INTERPRETER_INIT_MS / 1000} s`,
    );
  if (error) {
    context.line(error.traceback);
    throw new EngineError('build_failed', `init of ${item.name} raised ${error.type}: ${error.message}`);
  }
  return resident;
}

/** Tries the ready check until it exits with 0 or its time is over. */
export async function waitUntilReady(
  session: AgentSession,
  check: CommandSpec,
  residents: readonly Resident[],
  context: StepContext,
  signal: AbortSignal,
): Promise<void> {
  const end = performance.now() + check.timeoutMs;
  for (;;) {
    const left = Math.max(1, Math.round(end - performance.now()));
    const outcome = await runToEnd(session, { ...check, timeoutMs: left }, context, signal);
    if (outcome === null) return;
    assertRunning(residents);
    if (performance.now() + READY_RETRY_MS >= end)
      throw new EngineError(
        'build_failed',
        `the machine was not ready within ${check.timeoutMs / 1000} s: ${shown(check.run)} ${outcome}`,
      );
    await delay(READY_RETRY_MS, undefined, { signal });
  }
}

/** A service that has ended is not in the snapshot: better to hear of it now. */
export function assertRunning(residents: readonly Resident[]): void {
  for (const { what, ended } of residents)
    if (ended !== null)
      throw new EngineError('build_failed', `${what} ended before the capture: it ${ended}`);
}

function watchResident(what: string, process: AgentProcess): Resident {
  const resident: Resident = { what, process, ended: null };
  process.wait().then(
    (outcome) => {
      resident.ended = outcome.kind === 'exited' ? `exited with ${outcome.code}` : `ended by ${outcome.kind}`;
    },
    () => {}, // The session was closed: nobody asks any more.
  );
  return resident;
}

function follow(process: AgentProcess, context: StepContext): void {
  for (const stream of [process.stdout, process.stderr])
    stream?.setEncoding('utf8').on('data', (text: string) => context.output(text));
}

/** A command in a message: its first line, quoted. */
export function shown(command: string): string {
  const first = command.trim().split('\n')[0]!;
  return JSON.stringify(first.length > 80 || first !== command.trim() ? `${first.slice(0, 80)}...` : first);
}
