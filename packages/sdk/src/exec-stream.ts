/** A command over a websocket: streams with flow control by credit, see `stream.ts` of the API. */
import { connect } from 'node:net';
import type { Readable, Writable } from 'node:stream';
import {
  type ChannelName,
  type ClientMessage,
  channels,
  errorBody,
  type Outcome,
  type ServerMessage,
} from '@forkd/api';
import WebSocket, { type ClientOptions } from 'ws';
import { CreditReader, CreditWriter } from './credit.js';
import { clientError, errorOfBody, type ForkdError } from './errors.js';
import { errorOfText, type Transport } from './transport.js';

/** How a streamed command ended. */
export interface ExecExit {
  outcome: Outcome;
  /** Code of the command; as a shell says it otherwise (128 + signal, 124 for a time-out). */
  exitCode: number;
  durationMs: number;
}

/** First message of the conversation, as JSON. */
export type OpeningMessage = { type: 'start'; [field: string]: unknown } | { type: 'attach'; handle: number };

/**
 * A command that runs in a sandbox. Read `stdout` and `stderr`, or call `resume()` on them: a command whose output nobody
 * takes stops when 256 KiB are waiting, and `wait` with it.
 */
export class RemoteProcess {
  /** Names the process for `attach`. */
  readonly handle: number;
  /** Process id in the guest. */
  readonly pid: number;
  /** Null when it was started without stdin. Ending it is the command's EOF. */
  readonly stdin: Writable | null;
  /** Emits `gap` {from, to} after an attach, where output was lost. */
  readonly stdout: Readable;
  /** Null for a pty, whose output is all in stdout. */
  readonly stderr: Readable | null;
  readonly #connection: Connection;

  /** @internal Use `sandbox.run` or `sandbox.attach`. */
  constructor(connection: Connection, started: { handle: number; pid: number; stderr: boolean }) {
    this.#connection = connection;
    this.handle = started.handle;
    this.pid = started.pid;
    this.stdin = connection.stdin;
    this.stdout = connection.stdout;
    this.stderr = started.stderr ? connection.stderr : null;
  }

  /**
   * Resolves when the command has ended; its output is then in the streams, to the last byte.
   *
   * @param signal Ends the waiting, not the command.
   * @throws ForkdError connection_lost when the daemon went away; cancelled.
   */
  async wait(signal?: AbortSignal): Promise<ExecExit> {
    if (signal === undefined) return this.#connection.exit;
    return new Promise((resolve, reject) => {
      const abort = () => reject(clientError('cancelled', {}, { cause: signal.reason }));
      if (signal.aborted) abort();
      signal.addEventListener('abort', abort, { once: true });
      this.#connection.exit.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
    });
  }

  /** Sends a signal such as `SIGINT`. To a command that has ended: nothing. */
  signal(name: string): void {
    this.#connection.send({ type: 'signal', signal: name });
  }

  /** Tells a pty its size. */
  resize(size: { rows: number; cols: number }): void {
    this.#connection.send({ type: 'resize', ...size });
  }

  /** Goes away: what was started here is killed unless `keep` was set, what was attached to goes on. */
  close(): void {
    this.#connection.close(clientError('cancelled', {}));
  }
}

/** Opens the conversation and waits for `started`. */
export async function openProcess(
  transport: Transport,
  path: string,
  opening: OpeningMessage,
  options: { stdin: boolean; signal?: AbortSignal | undefined },
): Promise<RemoteProcess> {
  const { signal } = options;
  if (signal?.aborted) throw clientError('cancelled', {}, { cause: signal.reason });
  const connection = new Connection(transport, path, opening, options.stdin);
  // The signal holds for as long as the command runs: who aborts wants neither its start nor its output.
  const abort = () => connection.close(clientError('cancelled', {}, { cause: signal?.reason }));
  signal?.addEventListener('abort', abort, { once: true });
  connection.exit.catch(() => undefined).then(() => signal?.removeEventListener('abort', abort));
  return new RemoteProcess(connection, await connection.started);
}

type Started = Extract<ServerMessage, { type: 'started' }>;

/** Close code of a websocket that was sent more than it takes, and how much a daemon takes, for the message. */
const messageTooBig = 1009;
const messageLimit = 16 * 1024 * 1024;

/** The websocket and what hangs on it. */
class Connection {
  readonly stdout: CreditReader;
  readonly stderr: CreditReader;
  readonly stdin: CreditWriter | null;
  readonly started: Promise<Started>;
  readonly exit: Promise<ExecExit>;
  readonly #socket: WebSocket;
  readonly #transport: Transport;
  #onStarted: (started: Started) => void = () => undefined;
  #onExit: (exit: ExecExit) => void = () => undefined;
  #onFail: (error: ForkdError) => void = () => undefined;
  #ended = false;

  constructor(transport: Transport, path: string, opening: OpeningMessage, stdin: boolean) {
    this.#transport = transport;
    this.started = new Promise((resolve, reject) => {
      this.#onStarted = resolve;
      this.#onFail = reject;
    });
    const failStart = this.#onFail;
    this.exit = new Promise((resolve, reject) => {
      this.#onExit = resolve;
      this.#onFail = (error) => {
        failStart(error);
        reject(error);
      };
    });
    this.started.catch(() => undefined);
    this.exit.catch(() => undefined);
    const giveBack = (channel: 'stdout' | 'stderr') => (bytes: number) =>
      this.send({ type: 'credit', channel, bytes });
    this.stdout = new CreditReader(giveBack('stdout'));
    this.stderr = new CreditReader(giveBack('stderr'));
    this.stdin = stdin
      ? new CreditWriter(
          (bytes) => this.#sendInput(bytes),
          () => this.send({ type: 'eof' }),
        )
      : null;
    this.#socket = dial(transport, path);
    this.#listen(opening);
  }

  send(message: ClientMessage): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  /** Ends the conversation with a failure, unless it has ended. */
  close(error: ForkdError): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#onFail(error);
    for (const stream of [this.stdout, this.stderr, this.stdin]) stream?.fail(error);
    this.#socket.close();
    // A peer that does not answer the close must not keep the process alive.
    setTimeout(() => this.#socket.terminate(), 2000).unref();
  }

  #listen(opening: OpeningMessage): void {
    const socket = this.#socket;
    socket.on('open', () => socket.send(JSON.stringify(opening)));
    socket.on('message', (data, isBinary) => {
      const bytes = data as Buffer;
      if (isBinary) this.#output(bytes);
      else this.#message(bytes.toString('utf8'));
    });
    socket.on('unexpected-response', (request, response) => {
      const chunks: Buffer[] = [];
      const finish = () => {
        const text = Buffer.concat(chunks).toString('utf8');
        const status = response.statusCode ?? 0;
        request.destroy();
        this.close(errorOfText(text, status) ?? this.#transport.badAnswer(`status ${status} to a websocket`));
      };
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('end', finish).on('error', finish);
    });
    socket.on('error', (error) => this.close(this.#transport.wrap(error, undefined, 'exec', 10_000)));
    socket.on('close', (code) => {
      if (this.#ended) return;
      if (code === messageTooBig) this.close(clientError('payload_too_large', { limit: messageLimit }));
      else
        this.close(
          clientError('connection_lost', { problem: `closed with ${code} before the command's end` }),
        );
    });
  }

  #message(text: string): void {
    let message: ServerMessage;
    try {
      message = JSON.parse(text) as ServerMessage;
    } catch (cause) {
      this.close(this.#transport.badAnswer('a message that is no JSON', cause));
      return;
    }
    switch (message.type) {
      case 'started':
        if (!message.stderr) this.stderr.end();
        this.#onStarted(message);
        return;
      case 'credit':
        this.stdin?.grant(message.bytes);
        return;
      case 'gap':
        this[message.channel].skip({ from: message.from, to: message.to });
        return;
      case 'error':
        this.close(errorOfBody(message.error ?? errorBody('internal', { problem: 'an empty error' })));
        return;
      case 'exit':
        this.#ended = true;
        this.stdout.end();
        this.stderr.end();
        this.stdin?.stop();
        this.#onExit({
          outcome: message.outcome,
          exitCode: message.exit_code,
          durationMs: message.duration_ms,
        });
        this.#socket.close(1000);
    }
  }

  #output(frame: Buffer): void {
    if (frame[0] === channels.stdout) this.stdout.give(frame.subarray(1));
    else if (frame[0] === channels.stderr) this.stderr.give(frame.subarray(1));
    else this.close(this.#transport.badAnswer(`a frame of channel ${frame[0]}`));
  }

  #sendInput(bytes: Buffer): void {
    if (this.#socket.readyState !== WebSocket.OPEN) return;
    this.#socket.send(Buffer.concat([Buffer.from([channels['stdin' satisfies ChannelName]]), bytes]));
  }
}

function dial(transport: Transport, path: string): WebSocket {
  const { origin, socketPath } = transport.address;
  const options: ClientOptions = {
    headers: transport.headers(),
    handshakeTimeout: 10_000,
    perMessageDeflate: false,
    maxPayload: 1024 * 1024,
  };
  if (socketPath !== null) {
    options.createConnection = (() => connect(socketPath)) as unknown as NonNullable<
      ClientOptions['createConnection']
    >;
  }
  return new WebSocket(`${origin.replace(/^http/, 'ws')}${path}`, options);
}
