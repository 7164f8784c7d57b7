import type net from 'node:net';
import { deadline, orAborted } from '../deadline.js';
import { EngineError, messageOf } from '../errors.js';
import { connectUnix } from '../unix-socket.js';

/** What the monitor sends unasked. */
export interface QmpEvent {
  event: string;
  data?: Record<string, unknown>;
  /** When it happened, on the host's wall clock. */
  timestamp?: { seconds: number; microseconds: number };
}

interface Pending {
  command: string;
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
}

/** Longest line that a monitor may send, bytes; a guest cannot make it send more. */
const LONGEST_LINE = 16 * 1024 * 1024;

/** How long a command may take where the caller does not say, ms. */
const COMMAND_MS = 20_000;

/** A QMP monitor of QEMU: commands are answered in order, events come in between. */
export class Qmp implements AsyncDisposable {
  readonly #socket: net.Socket;
  readonly #pending: Pending[] = [];
  readonly #listeners = new Set<(event: QmpEvent) => void>();
  #chunks: Buffer[] = [];
  #length = 0;
  #failure: EngineError | undefined;
  #greeted!: (greeting: { version: string }) => void;
  #ungreeted!: (error: unknown) => void;
  readonly #greeting = new Promise<{ version: string }>((resolve, reject) => {
    this.#greeted = resolve;
    this.#ungreeted = reject;
  });

  private constructor(socket: net.Socket) {
    this.#socket = socket;
    this.#greeting.catch(() => {});
    socket.on('data', (chunk) => this.#take(chunk));
    socket.on('error', (error) => this.#fail(`the monitor's connection broke: ${messageOf(error)}`, error));
    socket.on('close', () => this.#fail('the monitor has closed its connection: the VMM has ended'));
  }

  /** Connects, waits for the greeting, and leaves negotiation mode. */
  static async connect(path: string, signal: AbortSignal): Promise<Qmp> {
    const qmp = new Qmp(await connectUnix(path, signal));
    try {
      await orAborted(qmp.#greeting, signal);
      await qmp.run('qmp_capabilities', {}, { signal });
      return qmp;
    } catch (error) {
      qmp.close();
      throw error;
    }
  }

  /**
   * Runs a command.
   *
   * @throws EngineError vmm_failed when QEMU refuses it (details.class has its error class), timeout
   */
  async run<T = unknown>(
    command: string,
    args: Record<string, unknown> = {},
    options: { signal?: AbortSignal; timeoutMs?: number } = {},
  ): Promise<T> {
    if (this.#failure) throw this.#failure;
    using limit = deadline(`QMP command ${command}`, options.timeoutMs ?? COMMAND_MS, options.signal);
    const answer = new Promise<unknown>((resolve, reject) => {
      this.#pending.push({ command, resolve, reject });
    });
    answer.catch(() => {});
    this.#socket.write(`${JSON.stringify({ execute: command, arguments: args })}\n`);
    return (await orAborted(answer, limit.signal)) as T;
  }

  /** Waits for the first event that `wanted` accepts, from now on. */
  async event(wanted: (event: QmpEvent) => boolean, signal: AbortSignal): Promise<QmpEvent> {
    if (this.#failure) throw this.#failure;
    let listener: ((event: QmpEvent) => void) | undefined;
    let onClose: (() => void) | undefined;
    try {
      const found = new Promise<QmpEvent>((resolve, reject) => {
        listener = (event) => {
          if (wanted(event)) resolve(event);
        };
        onClose = () => reject(this.#failure);
        this.#listeners.add(listener);
        this.#socket.once('close', onClose);
      });
      return await orAborted(found, signal);
    } finally {
      if (listener) this.#listeners.delete(listener);
      if (onClose) this.#socket.off('close', onClose);
    }
  }

  close(): void {
    this.#socket.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  #take(chunk: Buffer): void {
    let start = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, start)) {
      const line = Buffer.concat([...this.#chunks, chunk.subarray(start, end)]).toString('utf8');
      this.#chunks = [];
      this.#length = 0;
      start = end + 1;
      if (line.trim() !== '') this.#line(line);
    }
    if (start < chunk.length) {
      this.#chunks.push(chunk.subarray(start));
      this.#length += chunk.length - start;
      if (this.#length > LONGEST_LINE)
        this.#fail(`the monitor sent a line of more than ${LONGEST_LINE} bytes`);
    }
  }

  #line(line: string): void {
    let message: Record<string, unknown>;
    try {
      message = JSON.parse(line) as Record<string, unknown>;
    } catch (error) {
      this.#fail(`the monitor sent what is not JSON: ${line.slice(0, 200)}`, error);
      return;
    }
    if (typeof message.event === 'string') {
      for (const listener of this.#listeners) listener(message as unknown as QmpEvent);
    } else if (message.QMP) {
      this.#greeted({ version: versionOf(message) });
    } else {
      this.#answer(message);
    }
  }

  #answer(message: Record<string, unknown>): void {
    const pending = this.#pending.shift();
    const error = message.error as { class?: string; desc?: string } | undefined;
    if (!pending) {
      this.#fail('the monitor answered a command that nobody sent');
    } else if (error === undefined) {
      pending.resolve(message.return);
    } else {
      const reason = error.desc ?? 'no reason given';
      pending.reject(
        new EngineError('vmm_failed', `QEMU refused ${pending.command}: ${reason}`, {
          details: { command: pending.command, class: error.class },
        }),
      );
    }
  }

  #fail(problem: string, cause?: unknown): void {
    if (this.#failure) return;
    this.#failure = new EngineError('vmm_failed', problem, { cause });
    this.#ungreeted(this.#failure);
    for (const pending of this.#pending.splice(0)) pending.reject(this.#failure);
    this.#socket.destroy();
  }
}

function versionOf(greeting: Record<string, unknown>): string {
  const qmp = greeting.QMP as { version?: { qemu?: { major: number; minor: number; micro: number } } };
  const v = qmp.version?.qemu;
  return v ? `${v.major}.${v.minor}.${v.micro}` : 'unknown';
}
