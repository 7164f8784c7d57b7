/** One sandbox. */
import {
  type BranchMode,
  BranchReply,
  defaultTimeoutSecs,
  EvalResponse,
  ExecResponse,
  type ForkFailure,
  GuestMetrics,
  LogsReply,
  PingReply,
  type ProcessEntry,
  ProcessList,
  PromoteReply,
  type PtySize,
  paths,
  SandboxInfo,
  SnapshotInfo,
} from '@forkd/api';
import { type Command, type CommandOptions, commandBody } from './command.js';
import { errorOfBody, isErrorBody } from './errors.js';
import { openProcess, type RemoteProcess } from './exec-stream.js';
import { SandboxFiles } from './files.js';
import type { Transport } from './transport.js';

export interface ExecOptions extends CommandOptions {
  /** Given to the command, then EOF. Default: /dev/null. */
  stdin?: string | Uint8Array;
  /** `base64` for output that is not text. Default utf8. */
  encoding?: 'utf8' | 'base64';
  /** Bytes of stdout and of stderr that are kept; the rest is counted. Default 8 MiB. */
  maxOutputBytes?: number;
  signal?: AbortSignal;
}

export interface RunOptions extends CommandOptions {
  /** Whether `stdin` of the process will be written to. Default false: /dev/null. */
  stdin?: boolean;
  /** A terminal of this size; it always has stdin. */
  pty?: PtySize;
  /** Leave it running when this client goes away. Default false. */
  keep?: boolean;
  /** Kills it (unless `keep`) when aborted. */
  signal?: AbortSignal;
}

export interface EvalOptions {
  /** Seconds until the code is interrupted; the interpreter lives on. Default 30. */
  timeoutSecs?: number | undefined;
  /** Name of the interpreter. Default: the first of the template. */
  interpreter?: string | undefined;
  /** Called with output as it comes. */
  onOutput?: (stream: 'stdout' | 'stderr', text: string) => void;
  signal?: AbortSignal;
}

export interface BranchOptions {
  /** Tag of the new snapshot. Default: none; it has its id. */
  tag?: string | undefined;
  /** Default `live`, where the host permits it. */
  mode?: BranchMode | undefined;
  /** false: do not wait until the snapshot is written. Default true. */
  wait?: boolean | undefined;
  signal?: AbortSignal | undefined;
}

/** A branch and the children that continue from it. */
export interface BranchOutcome {
  snapshot: SnapshotInfo;
  sandboxes: Sandbox[];
  failures: ForkFailure[];
}

/** How long a branch may take: gigabytes are written. */
const branchMs = 10 * 60_000;

/** A deadline of the client is only for a daemon that hangs: it comes after the daemon's own. */
const graceSecs = 30;

/**
 * A microVM that runs.
 *
 * @example
 * const { sandboxes: [box] } = await client.fork({ snapshot: 'python' });
 * const { result } = await box.eval('1 + 1'); // '2'
 * await box.kill();
 */
export class Sandbox {
  readonly id: string;
  readonly files: SandboxFiles;
  readonly #transport: Transport;
  #last: SandboxInfo | undefined;

  /** @internal Use `client.fork`, `client.sandboxes.get` or `client.sandbox`. */
  constructor(transport: Transport, id: string, info?: SandboxInfo) {
    this.#transport = transport;
    this.id = id;
    this.files = new SandboxFiles(transport, id);
    this.#last = info;
  }

  /** What was last heard of it; undefined before the first `info` of a sandbox that was made from an id. */
  get lastInfo(): SandboxInfo | undefined {
    return this.#last;
  }

  /** What it is now. Also measures its memory. */
  async info(signal?: AbortSignal): Promise<SandboxInfo> {
    this.#last = await this.#transport.json<SandboxInfo>('GET', paths.sandbox(this.id), SandboxInfo, {
      signal,
    });
    return this.#last;
  }

  /** Whether its agent answers, and how fast. */
  async ping(signal?: AbortSignal): Promise<PingReply> {
    return this.#transport.json<PingReply>('POST', paths.ping(this.id), PingReply, { signal });
  }

  /**
   * Runs a command and collects its output. A command that fails is no error: see `exit_code` and `outcome`.
   *
   * @throws InvalidError command_not_found when there is no such program.
   */
  async exec(command: Command, options: ExecOptions = {}): Promise<ExecResponse> {
    const { stdin } = options;
    const json = {
      ...commandBody(command, options),
      ...(stdin !== undefined &&
        (typeof stdin === 'string'
          ? { stdin }
          : { stdin: Buffer.from(stdin).toString('base64'), stdin_encoding: 'base64' })),
      encoding: options.encoding,
      max_output_bytes: options.maxOutputBytes,
    };
    return this.#transport.json<ExecResponse>('POST', paths.exec(this.id), ExecResponse, {
      json,
      signal: options.signal,
      timeoutMs: deadlineMs(options.timeoutSecs),
    });
  }

  /** Starts a command with live streams. Without `timeoutSecs` it may run for ever. */
  async run(command: Command, options: RunOptions = {}): Promise<RemoteProcess> {
    const hasInput = options.stdin === true || options.pty !== undefined;
    const opening = {
      type: 'start' as const,
      ...commandBody(command, options),
      pty: options.pty,
      stdin: hasInput,
      keep: options.keep,
    };
    return openProcess(this.#transport, paths.execStream(this.id), opening, {
      stdin: hasInput,
      signal: options.signal,
    });
  }

  /** Joins a process that runs, from the oldest output that is kept. Output that is read too late is lost, and told by `gap`. */
  async attach(handle: number, options: { signal?: AbortSignal } = {}): Promise<RemoteProcess> {
    const opening = { type: 'attach' as const, handle };
    return openProcess(this.#transport, paths.execStream(this.id), opening, {
      stdin: true,
      signal: options.signal,
    });
  }

  /** Evaluates code in a warm interpreter. An exception in the code is no error: see `exception`. */
  async eval(code: string, options: EvalOptions = {}): Promise<EvalResponse> {
    const { onOutput, signal } = options;
    const json = { code, timeout_secs: options.timeoutSecs, interpreter: options.interpreter };
    const timeoutMs = deadlineMs(options.timeoutSecs);
    const path = paths.eval(this.id);
    if (onOutput === undefined) {
      return this.#transport.json<EvalResponse>('POST', path, EvalResponse, { json, signal, timeoutMs });
    }
    const request = { json: { ...json, stream: true }, signal, timeoutMs };
    for await (const line of this.#transport.lines('POST', path, request)) {
      const event = line as
        | { type: 'output'; stream: 'stdout' | 'stderr'; text: string }
        | { type: 'result'; result: EvalResponse }
        | { type: 'failed'; error: unknown };
      if (event.type === 'output') onOutput(event.stream, event.text);
      else if (event.type === 'result') return event.result;
      else if (event.type === 'failed' && isErrorBody(event.error)) throw errorOfBody(event.error);
    }
    throw this.#transport.badAnswer(`POST ${path} ended without a result`);
  }

  /** Processes that the agent knows. */
  async processes(signal?: AbortSignal): Promise<ProcessEntry[]> {
    return this.#transport.json<ProcessEntry[]>('GET', paths.processes(this.id), ProcessList, { signal });
  }

  /** End of its console and of what its VMM said. */
  async logs(signal?: AbortSignal): Promise<LogsReply> {
    return this.#transport.json<LogsReply>('GET', paths.logs(this.id), LogsReply, { signal });
  }

  /** What the guest says of itself. */
  async metrics(signal?: AbortSignal): Promise<GuestMetrics> {
    return this.#transport.json<GuestMetrics>('GET', paths.guestMetrics(this.id), GuestMetrics, { signal });
  }

  /**
   * Captures it into a new snapshot, without stopping it. Resolves when the snapshot is ready, or with `wait: false` when it runs again.
   *
   * @example
   * const { id } = await box.branch({ tag: 'half-way' });
   * const { sandboxes } = await client.fork({ snapshot: 'half-way', n: 3 });
   * @throws ConflictError tag_exists; BusyError when as many branches are being written as the host takes
   */
  async branch(options: BranchOptions = {}): Promise<SnapshotInfo> {
    const { tag, mode, wait, signal } = options;
    return this.#transport.json<SnapshotInfo>('POST', paths.branch(this.id), SnapshotInfo, {
      json: { tag, mode, wait },
      signal,
      timeoutMs: branchMs,
    });
  }

  /**
   * Starts children that continue from what it is now: a branch, and a fork of it.
   *
   * @example const { sandboxes, snapshot } = await box.fork(3);
   */
  async fork(n = 1, options: Omit<BranchOptions, 'wait'> = {}): Promise<BranchOutcome> {
    const { tag, mode, signal } = options;
    const request = { json: { tag, mode, n }, signal, timeoutMs: branchMs };
    const reply = await this.#transport.json<BranchReply>(
      'POST',
      paths.branch(this.id),
      BranchReply,
      request,
    );
    const { sandboxes, failures = [], ...snapshot } = reply;
    const infos = Array.isArray(sandboxes) ? sandboxes : [];
    return {
      snapshot: { ...snapshot, sandboxes: infos.length },
      sandboxes: infos.map((info) => new Sandbox(this.#transport, info.id, info)),
      failures,
    };
  }

  /** Takes the place of another sandbox, whose id means this one from then on. That one is branched first, then removed. */
  async promote(over: string, signal?: AbortSignal): Promise<PromoteReply> {
    return this.#transport.json<PromoteReply>('POST', paths.promote(this.id), PromoteReply, {
      json: { over },
      signal,
      timeoutMs: branchMs,
    });
  }

  /** Ends it and removes all it had. */
  async kill(signal?: AbortSignal): Promise<void> {
    await this.#transport.done('DELETE', paths.sandbox(this.id), { signal });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }
}

function deadlineMs(timeoutSecs: number | undefined): number {
  return ((timeoutSecs || defaultTimeoutSecs) + graceSecs) * 1000;
}
