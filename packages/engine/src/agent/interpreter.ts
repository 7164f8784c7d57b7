/** A warm interpreter: JSON lines over the pipes of an ordinary guest process. guest/interpreters has the other side. */
import { randomBytes } from 'node:crypto';
import { AgentError } from './errors.js';
import { Evaluation } from './evaluation.js';
import { LineReader } from './line-reader.js';
import { refuseAborted, settle } from './settle.js';
import type {
  AgentProcess,
  AgentSession,
  EvalOptions,
  EvalResult,
  Interpreter,
  MachineIdentity,
  Outcome,
  ProcessInfo,
} from './types.js';

const DEFAULT_MAX_OUTPUT = 10 * 1024 * 1024;
/** Longest line outside an evaluation, characters. */
const MAX_LINE = 1024 * 1024;
/** How long an interpreter may take to say that it is ready: it may still be importing. */
const READY_DEADLINE_MS = 300_000;
/** An interrupted evaluation is interrupted again, with all its children, after these times; then the interpreter is killed. */
const INSIST_MS = [500, 1500, 3000] as const;
const KILL_MS = 5000;

interface Ready {
  language: string;
  version: string;
}

/**
 * Follows a warm interpreter that runs in the guest. It may be amid something of the machine it was copied from; what that
 * leaves behind is ignored.
 */
export async function openInterpreter(
  session: AgentSession,
  handle: number | ProcessInfo,
  identity?: MachineIdentity,
): Promise<Interpreter> {
  const number = typeof handle === 'number' ? handle : handle.handle;
  const process = await session.attach(number, { from: 'now', lossless: true, stdin: true });
  return new WarmInterpreter(process, identity);
}

class WarmInterpreter implements Interpreter {
  readonly handle: number;
  readonly #process: AgentProcess;
  /** Ids must not meet those of the machine that this one was copied from. */
  readonly #prefix = randomBytes(6).toString('hex');
  #count = 0;
  #queue: Promise<unknown> = Promise.resolve();
  #current: Evaluation | null = null;
  #ready: Ready | null = null;
  readonly #waitingReady = new Set<{ resolve: (r: Ready) => void; reject: (e: Error) => void }>();
  #over: AgentError | null = null;
  /** Told with the first evaluation. */
  #identity: MachineIdentity | undefined;
  /** A line feed before the first line ends what another host may have left half-written. */
  #begun = false;
  readonly #lines: LineReader;

  constructor(process: AgentProcess, identity?: MachineIdentity) {
    this.#identity = identity;
    this.handle = process.handle;
    this.#process = process;
    this.#lines = new LineReader(
      () => (this.#current?.maxLine ?? 0) + MAX_LINE,
      (line) => this.#line(line),
      () => this.#end(new AgentError('protocol', 'the interpreter sent a line that is too long')),
    );
    process.stderr?.resume();
    process.stdout.on('data', (chunk: Buffer) => this.#lines.push(chunk));
    process.stdout.on('gap', () =>
      this.#end(new AgentError('protocol', 'output of the interpreter was lost')),
    );
    process.wait().then(
      (outcome) =>
        this.#end(new AgentError('interpreter_died', `the interpreter has ended: ${story(outcome)}`)),
      (error) => this.#end(error instanceof AgentError ? error : new AgentError('closed', String(error))),
    );
  }

  async ready(signal?: AbortSignal): Promise<Ready> {
    refuseAborted('waiting for the interpreter', signal);
    if (this.#over) throw this.#over;
    if (this.#ready) return this.#ready;
    let waiter!: { resolve: (r: Ready) => void; reject: (e: Error) => void };
    const answer = new Promise<Ready>((resolve, reject) => {
      waiter = { resolve, reject };
    });
    answer.catch(() => {});
    this.#waitingReady.add(waiter);
    this.#send({ type: 'hello' });
    try {
      return await settle(answer, { signal, deadlineMs: READY_DEADLINE_MS }, 'interpreter', () => {});
    } finally {
      this.#waitingReady.delete(waiter);
    }
  }

  eval(code: string, o: EvalOptions = {}): Promise<EvalResult> {
    const turn = this.#queue.then(() => this.#evaluate(code, o));
    this.#queue = turn.catch(() => {});
    return turn;
  }

  identify(identity: MachineIdentity): void {
    this.#identity = identity;
  }

  async close(): Promise<void> {
    this.#end(new AgentError('closed', 'the interpreter is not followed any more'));
    this.#process.detach();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #evaluate(code: string, o: EvalOptions): Promise<EvalResult> {
    refuseAborted('eval', o.signal);
    if (this.#over) throw this.#over;
    const id = `${this.#prefix}-${++this.#count}`;
    const maxOutput = o.maxOutput ?? DEFAULT_MAX_OUTPUT;
    const evaluation = new Evaluation(id, maxOutput, o.onOutput);
    this.#current = evaluation;
    this.#send({
      type: 'eval',
      id,
      code,
      max_value: maxOutput,
      ...this.#identity,
      ...(o.generation === undefined ? {} : { generation: o.generation }),
      ...(o.env === undefined ? {} : { env: o.env }),
      ...(o.timeoutMs ? { timeout_ms: o.timeoutMs } : {}),
    });
    this.#identity = undefined;
    const timers: NodeJS.Timeout[] = [];
    const signals: Promise<void>[] = [];
    const interrupt = (): void => {
      if (signals.length > 0) return;
      signals.push(this.#signal('SIGINT', {}));
      for (const ms of INSIST_MS)
        timers.push(setTimeout(() => signals.push(this.#signal('SIGINT', { all: true })), ms));
      timers.push(setTimeout(() => signals.push(this.#signal('SIGKILL', { all: true })), KILL_MS));
    };
    let timedOut = false;
    if (o.timeoutMs)
      timers.push(
        setTimeout(
          () => {
            timedOut = true;
            interrupt();
          },
          // Timers beyond this fire at once.
          Math.min(o.timeoutMs, 2 ** 31 - 1),
        ),
      );
    o.signal?.addEventListener('abort', interrupt, { once: true });
    try {
      return await evaluation.result(() => timedOut);
    } catch (error) {
      if (timedOut && error instanceof AgentError && error.code === 'interpreter_died')
        return evaluation.killed(KILL_MS);
      throw error;
    } finally {
      this.#current = null;
      o.signal?.removeEventListener('abort', interrupt);
      for (const timer of timers) clearTimeout(timer);
      // An interrupt that is still on its way must not meet the next evaluation.
      await Promise.all(signals);
    }
  }

  async #signal(signal: 'SIGINT' | 'SIGKILL', o: { all?: boolean }): Promise<void> {
    try {
      await this.#process.signal(signal, o);
    } catch {
      // It has ended, and with it the evaluation.
    }
  }

  #send(message: Record<string, unknown>): void {
    this.#process.stdin?.write(`${this.#begun ? '' : '\n'}${JSON.stringify(message)}\n`);
    this.#begun = true;
  }

  #line(line: string): void {
    let message: unknown;
    try {
      message = JSON.parse(line);
    } catch {
      return; // the end of a line whose beginning another host has read
    }
    if (typeof message !== 'object' || message === null) return;
    const { type, id, language, version } = message as Record<string, unknown>;
    if (type === 'ready' && typeof language === 'string' && typeof version === 'string') {
      this.#ready = { language, version };
      for (const waiter of this.#waitingReady) waiter.resolve(this.#ready);
    } else if (this.#current !== null && id === this.#current.id) this.#current.take(message);
  }

  #end(error: AgentError): void {
    if (this.#over) return;
    this.#over = error;
    this.#current?.fail(error);
    for (const waiter of this.#waitingReady) waiter.reject(error);
  }
}

function story(outcome: Outcome): string {
  switch (outcome.kind) {
    case 'exited':
      return `exit code ${outcome.code}`;
    case 'signaled':
      return `killed by ${outcome.signalName}`;
    case 'oom':
      return 'out of memory';
    default:
      return outcome.kind;
  }
}
