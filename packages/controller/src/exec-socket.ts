/** The daemon's side of a streamed command; the protocol is in `stream.ts` of the API. */
import type { WebSocket } from '@fastify/websocket';
import {
  AttachMessage,
  ClientMessage,
  channels,
  errorCloseCode,
  exitCodeOf,
  initialCredit,
  quoteValue,
  type ServerMessage,
  StartMessage,
  signals,
} from '@forkd/api';
import type { AgentProcess } from '@forkd/engine';
import { ApiError, toApiError } from './errors.js';
import { outcomeOf, spawn, spawnSpec } from './exec.js';
import { Outlet } from './outlet.js';
import type { Services } from './services.js';
import { parserOf } from './validate.js';

const parseStart = parserOf(StartMessage, 'message');
const parseAttach = parserOf(AttachMessage, 'message');
const parseMessage = parserOf(ClientMessage, 'message');

/** A client that has not said what it wants by then is dropped. */
const openingMs = 10_000;
/** Time between pings; who has not answered one by the next is gone. */
const heartbeatMs = 30_000;

/** Serves one websocket until either side ends it. */
export function serveExecSocket(socket: WebSocket, id: string, services: Services): void {
  const leave = services.enter();
  const conversation = new Conversation(socket, id, services);
  let alive = true;
  const heartbeat = setInterval(() => {
    if (!alive) return socket.terminate();
    alive = false;
    socket.ping();
  }, heartbeatMs);
  socket.on('pong', () => {
    alive = true;
  });
  socket.on('close', () => {
    clearInterval(heartbeat);
    conversation.gone();
    leave();
  });
  socket.on('error', () => socket.terminate());
  socket.on('message', (data: Buffer, isBinary: boolean) => conversation.receive(data, isBinary));
}

class Conversation {
  readonly #socket: WebSocket;
  readonly #id: string;
  readonly #services: Services;
  readonly #gone = new AbortController();
  readonly #opening: NodeJS.Timeout;
  #phase: 'new' | 'starting' | 'running' | 'over' = 'new';
  #process: AgentProcess | null = null;
  #outlets: Partial<Record<'stdout' | 'stderr', Outlet>> = {};
  /** Whether it was started elsewhere, and is left to whom it belongs. */
  #attached = false;
  /** Whether the process goes on when the client has gone. */
  #keep = false;
  #inputCredit = initialCredit;

  constructor(socket: WebSocket, id: string, services: Services) {
    this.#socket = socket;
    this.#id = id;
    this.#services = services;
    this.#opening = setTimeout(
      () =>
        this.#fail(new ApiError('timeout', { what: 'the first message', limit: `${openingMs / 1000} s` })),
      openingMs,
    );
  }

  receive(data: Buffer, isBinary: boolean): void {
    if (this.#phase === 'over') return;
    try {
      if (isBinary) this.#input(data);
      else this.#message(JSON.parse(data.toString('utf8')) as unknown);
    } catch (error) {
      const problem =
        error instanceof SyntaxError ? new ApiError('invalid_json', { problem: error.message }) : error;
      this.#fail(toApiError(problem, { sandbox: this.#id }));
    }
  }

  /** The connection is closed. */
  gone(): void {
    clearTimeout(this.#opening);
    this.#gone.abort();
    const process = this.#process;
    const over = this.#phase === 'over';
    this.#phase = 'over';
    if (process === null) return;
    if (over || this.#keep) {
      process.detach();
      return;
    }
    process
      .signal('SIGKILL', { all: true, cancel: true })
      .then(() => process.release())
      .catch(() => undefined)
      .finally(() => process.detach());
  }

  #message(value: unknown): void {
    if (this.#phase === 'new') {
      this.#open(value);
      return;
    }
    const message = parseMessage(value);
    switch (message.type) {
      case 'credit':
        this.#outlets[message.channel]?.grant(message.bytes);
        return;
      case 'eof':
        this.#process?.stdin?.end();
        return;
      case 'signal':
        if (signals[message.signal] === undefined) {
          throw new ApiError('invalid_argument', {
            field: 'signal',
            problem: `${quoteValue(message.signal)} is no signal`,
          });
        }
        // One that comes after the end has nobody to go to.
        this.#process?.signal(message.signal as NodeJS.Signals).catch(() => undefined);
        return;
      case 'resize':
        this.#process?.resize(message.rows, message.cols).catch(() => undefined);
        return;
      default:
        throw new ApiError('invalid_argument', { field: 'type', problem: `a second ${message.type}` });
    }
  }

  #open(value: unknown): void {
    clearTimeout(this.#opening);
    const attach = (value as { type?: unknown } | null)?.type === 'attach';
    const began = performance.now();
    const starting = attach ? this.#attach(parseAttach(value)) : this.#start(parseStart(value));
    this.#phase = 'starting';
    starting
      .then((process) => this.#run(process, began))
      .catch((error: unknown) => this.#fail(toApiError(error, { sandbox: this.#id })));
  }

  async #start(message: StartMessage): Promise<AgentProcess> {
    const machine = await this.#services.sandboxes.machine(this.#id);
    this.#keep = message.keep === true;
    const { pty, timeout_secs: secs } = message;
    const spec = {
      ...spawnSpec(machine, message),
      stdin: message.stdin === true ? 'pipe' : 'none',
      ...(pty !== undefined && { pty }),
      ...(secs !== undefined && secs > 0 && { timeoutMs: Math.ceil(secs * 1000) }),
    } as const;
    return spawn(machine, spec, message.cwd, this.#gone.signal);
  }

  async #attach(message: AttachMessage): Promise<AgentProcess> {
    this.#keep = true;
    this.#attached = true;
    const machine = await this.#services.sandboxes.machine(this.#id);
    const session = await machine.session(this.#gone.signal);
    try {
      return await session.attach(message.handle, { from: 'kept', stdin: true }, this.#gone.signal);
    } catch (error) {
      throw toApiError(error, { sandbox: this.#id, value: message.handle });
    }
  }

  async #run(process: AgentProcess, began: number): Promise<void> {
    this.#process = process;
    if (this.#phase === 'over') {
      // The client went while the process came.
      this.gone();
      return;
    }
    this.#phase = 'running';
    process.stdin?.on('error', () => undefined);
    this.#send({
      type: 'started',
      handle: process.handle,
      pid: process.pid,
      stderr: process.stderr !== null,
    });
    const outlets = (['stdout', 'stderr'] as const).flatMap((name) => {
      const stream = process[name];
      if (stream === null) return [];
      stream.on('gap', ({ from, to }: { from: bigint; to: bigint }) =>
        this.#send({ type: 'gap', channel: name, from: Number(from), to: Number(to) }),
      );
      const outlet = new Outlet(stream, (bytes) => this.#frame(channels[name], bytes));
      this.#outlets[name] = outlet;
      return [outlet];
    });
    const told = outcomeOf(await process.wait(this.#gone.signal));
    await Promise.all(outlets.map((outlet) => outlet.empty));
    if (!this.#active()) return;
    this.#phase = 'over';
    const ms = performance.now() - began;
    this.#send({ type: 'exit', outcome: told, exit_code: exitCodeOf(told), duration_ms: ms });
    if (!this.#attached) process.release().catch(() => undefined);
    this.#socket.close(1000);
  }

  /** Apart, as others change the phase while a function waits. */
  #active(): boolean {
    return this.#phase === 'running';
  }

  #input(frame: Buffer): void {
    if (frame[0] !== channels.stdin) {
      throw new ApiError('invalid_argument', { field: 'frame', problem: `channel ${frame[0]} is not stdin` });
    }
    const bytes = frame.subarray(1);
    this.#inputCredit -= bytes.length;
    if (this.#inputCredit < 0) {
      throw new ApiError('invalid_argument', {
        field: 'frame',
        problem: 'more stdin than there was credit for',
      });
    }
    const taken = () => {
      this.#inputCredit += bytes.length;
      this.#send({ type: 'credit', channel: 'stdin', bytes: bytes.length });
    };
    const stdin = this.#process?.stdin;
    // A command that does not read, or has closed its input, must not stop who writes.
    if (stdin?.writable) stdin.write(bytes, taken);
    else taken();
  }

  #fail(error: ApiError): void {
    if (this.#phase === 'over') return;
    this.#send({ type: 'error', error: this.#services.sandboxes.explain(this.#id, error).body });
    this.#socket.close(errorCloseCode);
    // Its process, if there is one, ends as when a client goes away.
    const process = this.#process;
    if (process !== null && !this.#keep) {
      process.signal('SIGKILL', { all: true, cancel: true }).catch(() => undefined);
    }
    this.#phase = 'over';
  }

  #send(message: ServerMessage): void {
    if (this.#socket.readyState === this.#socket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #frame(channel: number, bytes: Buffer): void {
    if (this.#socket.readyState !== this.#socket.OPEN) return;
    const frame = Buffer.allocUnsafe(bytes.length + 1);
    frame[0] = channel;
    bytes.copy(frame, 1);
    this.#socket.send(frame);
  }
}
