/** Processes of the guest: starting, following, signalling and listing them. */
import type { Readable, Writable } from 'node:stream';
import { readableOf, writableOf } from './channels.js';
import type { CallOptions, Conversation } from './conversation.js';
import { AgentError } from './errors.js';
import { type FieldReader, FieldWriter } from './fields.js';
import { collectRecords, readOutcome, readUsage, signalNumber } from './records.js';
import type { Request } from './request.js';
import { refuseAborted, settle } from './settle.js';
import type { AgentProcess, AttachOptions, Outcome, ProcessInfo, SpawnSpec } from './types.js';

/** How long starting a process may take: the guest may be short of memory, but not for ever. */
const SPAWN_DEADLINE_MS = 60_000;
const CALL_DEADLINE_MS = 30_000;

export async function spawn(c: Conversation, spec: SpawnSpec, signal?: AbortSignal): Promise<AgentProcess> {
  refuseAborted('spawn', signal);
  const pty = spec.pty !== undefined;
  const input = pty || spec.stdin === 'pipe';
  const request = c.begin('SPAWN', spawnFields(spec), {
    input,
    outputs: pty ? [{ channel: 1 }] : [{ channel: 1 }, { channel: 2 }],
  });
  // Its caller gave up and will never know the handle: nothing of it may stay.
  request.onLateAnswer = (fields) => void forsake(c, fields.u32('handle'));
  const fields = await c.wait(request, request.answered, callOptions(signal, SPAWN_DEADLINE_MS));
  return new FollowedProcess(c, request, fields, pty);
}

export async function attach(
  c: Conversation,
  handle: number,
  o: AttachOptions = {},
  signal?: AbortSignal,
): Promise<AgentProcess> {
  refuseAborted('attach', signal);
  const fields = new FieldWriter()
    .u32('handle', handle)
    .u32('from', o.from === 'now' ? 1 : 0)
    .flag('lossless', o.lossless)
    .flag('stdin', o.stdin);
  const anyStart = o.from === 'now';
  const request = c.begin('ATTACH', fields, {
    input: o.stdin === true,
    outputs: [
      { channel: 1, anyStart },
      // A pty has no stderr; whether it is one is in the answer.
      { channel: 2, anyStart, optional: true },
    ],
  });
  const answer = await c.wait(request, request.answered, callOptions(signal, CALL_DEADLINE_MS));
  return new FollowedProcess(c, request, answer, answer.u32('pty', 0) === 1);
}

export async function listProcesses(c: Conversation): Promise<ProcessInfo[]> {
  const request = c.begin('PS', new FieldWriter(), { outputs: [{ channel: 1, holdEnd: true }] });
  const records = readableOf(request.output(1), () => c.reset(request, gone('ps')));
  const all = collectRecords(records, (fields): ProcessInfo => {
    return {
      handle: fields.u32('handle'),
      pid: fields.u32('pid'),
      state: fields.u32('state') === 0 ? 'running' : 'exited',
      role: fields.u32('role') === 1 ? 'interpreter' : 'user',
      pty: fields.u32('pty', 0) === 1,
      label: fields.text('label', ''),
      command: fields.all('arg').map((arg) => arg.toString('utf8')),
      ageMs: Number(fields.u64('age')),
      outcome: fields.has('outcome') ? readOutcome(fields.bytes('outcome')).kind : null,
    };
  });
  return await c.wait(request, all, { deadlineMs: CALL_DEADLINE_MS });
}

class FollowedProcess implements AgentProcess {
  readonly handle: number;
  readonly pid: number;
  readonly stdin: Writable | null;
  readonly stdout: Readable;
  readonly stderr: Readable | null;
  readonly #c: Conversation;
  readonly #request: Request;
  readonly #outcome: Promise<Outcome>;

  constructor(c: Conversation, request: Request, answer: FieldReader, pty: boolean) {
    this.#c = c;
    this.#request = request;
    this.handle = answer.u32('handle');
    this.pid = answer.u32('pid');
    this.stdin = request.input ? writableOf(request.input, true) : null;
    this.stdout = readableOf(request.output(1));
    this.stderr = pty ? null : readableOf(request.output(2));
    this.#outcome = request.done.then(readEnd);
    this.#outcome.catch(() => {});
  }

  async wait(signal?: AbortSignal): Promise<Outcome> {
    return await settle(this.#outcome, { signal }, 'wait', () => {});
  }

  async signal(sig: number | NodeJS.Signals, o: { all?: boolean; cancel?: boolean } = {}): Promise<void> {
    await this.#call(
      'SIGNAL',
      new FieldWriter()
        .u32('handle', this.handle)
        .u32('signal', signalNumber(sig))
        .flag('all', o.all)
        .flag('cancel', o.cancel),
    );
  }

  async resize(rows: number, cols: number): Promise<void> {
    await this.#call(
      'RESIZE',
      new FieldWriter().u32('handle', this.handle).u32('rows', rows).u32('cols', cols),
    );
  }

  detach(): void {
    this.#c.reset(this.#request, gone('following a process'));
  }

  async release(): Promise<void> {
    await this.#call('RELEASE', new FieldWriter().u32('handle', this.handle));
  }

  async #call(verb: 'SIGNAL' | 'RESIZE' | 'RELEASE', fields: FieldWriter): Promise<void> {
    await this.#c.call(verb, fields, { deadlineMs: CALL_DEADLINE_MS });
  }
}

function readEnd(done: FieldReader): Outcome {
  const { kind, heldOpen } = readOutcome(done.bytes('outcome'));
  return { ...kind, ...readUsage(done.bytes('usage')), outputHeldOpen: heldOpen };
}

function spawnFields(spec: SpawnSpec): FieldWriter {
  const fields = new FieldWriter();
  if ('shell' in spec.command) fields.text('shell', spec.command.shell);
  else {
    if (spec.command.length === 0)
      throw new AgentError('invalid', 'the command is empty: name at least a program');
    for (const arg of spec.command) fields.text('arg', arg);
  }
  for (const [name, value] of Object.entries(spec.env ?? {})) fields.text('env', variable(name, value));
  if (spec.cwd !== undefined) fields.text('cwd', spec.cwd);
  if (spec.user !== undefined) fields.text('user', spec.user);
  if (spec.pty) fields.u32('rows', spec.pty.rows).u32('cols', spec.pty.cols);
  if (spec.stdin === 'pipe') fields.u32('stdin', 1);
  if (spec.timeoutMs !== undefined) fields.u32('timeout', spec.timeoutMs);
  if (spec.role === 'interpreter') fields.u32('role', 1);
  if (spec.label !== undefined) {
    const bytes = Buffer.byteLength(spec.label);
    if (bytes > 255) throw new AgentError('too_long', `a label has at most 255 bytes, got ${bytes}`);
    fields.text('label', spec.label);
  }
  return fields;
}

/** `NAME=value`, as the kernel takes it. */
export function variable(name: string, value: string): string {
  if (name === '' || name.includes('='))
    throw new AgentError('invalid', `${JSON.stringify(name)} is no name of an environment variable`);
  return `${name}=${value}`;
}

async function forsake(c: Conversation, handle: number): Promise<void> {
  const options: CallOptions = { deadlineMs: CALL_DEADLINE_MS };
  try {
    await c.call(
      'SIGNAL',
      new FieldWriter().u32('handle', handle).u32('signal', 9).flag('cancel', true),
      options,
    );
    await c.call('RELEASE', new FieldWriter().u32('handle', handle), options);
  } catch {
    // It has ended by itself, or the session has.
  }
}

function callOptions(signal: AbortSignal | undefined, deadlineMs: number): CallOptions {
  return { signal, deadlineMs };
}

function gone(what: string): AgentError {
  return new AgentError('aborted', `${what} was given up by its caller`);
}
