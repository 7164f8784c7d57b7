/** A session with the guest agent. Its methods are the agent's verbs; what carries them is in conversation.ts and link.ts. */
import { randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';
import type { Conversation } from './conversation.js';
import { dialPort } from './dial.js';
import { AgentError } from './errors.js';
import { broken, FieldWriter } from './fields.js';
import { GuestFiles } from './files.js';
import { Link } from './link.js';
import { readMetrics } from './metrics.js';
import { attach, listProcesses, spawn, variable } from './process.js';
import type { Verb } from './request.js';
import { abortedError, settle } from './settle.js';
import type {
  AgentFiles,
  AgentProcess,
  AgentSession,
  AttachOptions,
  GuestMetrics,
  Hello,
  HelloReply,
  OpenSessionOptions,
  ProcessInfo,
  SpawnSpec,
} from './types.js';

const CALL_DEADLINE_MS = 30_000;
/** Hooks have deadlines of their own in the guest; this is beyond them all. */
const HELLO_DEADLINE_MS = 120_000;
const SYNC_DEADLINE_MS = 600_000;

/**
 * Opens a session with the agent behind `dial`, and keeps it open over broken connections.
 *
 * @throws AgentError `unreachable` when nobody answers in time, `version` when the guest speaks another protocol, `aborted`.
 */
export async function openAgentSession(options: OpenSessionOptions): Promise<AgentSession> {
  const { signal } = options;
  if (signal?.aborted) throw abortedError('opening the session', signal);
  const sessionId = options.sessionId ? Buffer.from(options.sessionId) : randomBytes(16);
  if (sessionId.length !== 16)
    throw new AgentError('invalid', `a session id has 16 bytes, got ${sessionId.length}`);
  const link = new Link({
    dial: options.dial,
    sessionId,
    connectTimeoutMs: options.connectTimeoutMs ?? 30_000,
    reconnectTimeoutMs: options.reconnectTimeoutMs ?? 10_000,
    keepalive: {
      idleMs: options.keepalive?.idleMs ?? 5_000,
      answerMs: options.keepalive?.answerMs ?? 10_000,
    },
  });
  if (signal) {
    const abort = (): void => link.conversation.end(abortedError('the session', signal));
    signal.addEventListener('abort', abort, { once: true });
    void link.closed.then(() => signal.removeEventListener('abort', abort));
  }
  const resumed = await link.opened;
  return new Session(link, resumed);
}

class Session implements AgentSession {
  readonly sessionId: Buffer;
  readonly resumed: boolean;
  readonly files: AgentFiles;
  readonly closed: Promise<void>;
  readonly #c: Conversation;

  constructor(link: Link, resumed: boolean) {
    this.#c = link.conversation;
    this.sessionId = link.conversation.sessionId;
    this.resumed = resumed;
    this.closed = link.closed;
    this.files = new GuestFiles(link.conversation);
  }

  async hello(h: Hello, signal?: AbortSignal): Promise<HelloReply> {
    if (h.entropy.length < 32 || h.entropy.length > 512)
      throw new AgentError('invalid', `entropy has 32 to 512 bytes, got ${h.entropy.length}`);
    const fields = new FieldWriter()
      .bytes('generation', hex('generation', h.generation))
      .bytes('entropy', h.entropy)
      .u64('wall_clock', h.wallClockNs)
      .text('hostname', h.hostname);
    hex('machineId', h.machineId);
    fields.text('machine_id', h.machineId).text('metadata', h.metadata).u32('thaw', thawBits(h.thaw));
    for (const [name, value] of Object.entries(h.env)) fields.text('env', variable(name, value));
    const answer = await this.#c.call('HELLO', fields, { signal, deadlineMs: HELLO_DEADLINE_MS });
    return {
      protocolVersion: answer.u32('protocol'),
      monotonicNs: answer.u64('monotonic'),
      tookNs: answer.u64('took'),
      hooks: answer.all('hook').map(readHook),
    };
  }

  spawn(s: SpawnSpec, signal?: AbortSignal): Promise<AgentProcess> {
    return spawn(this.#c, s, signal);
  }

  attach(handle: number, o?: AttachOptions, signal?: AbortSignal): Promise<AgentProcess> {
    return attach(this.#c, handle, o, signal);
  }

  ps(): Promise<ProcessInfo[]> {
    return listProcesses(this.#c);
  }

  dial(port: number, signal?: AbortSignal): Promise<Duplex> {
    return dialPort(this.#c, port, signal);
  }

  metrics(): Promise<GuestMetrics> {
    return readMetrics(this.#c);
  }

  async setTime(wallClockNs: bigint): Promise<void> {
    await this.#call('SET_TIME', new FieldWriter().u64('wall_clock', wallClockNs));
  }

  async addEntropy(bytes: Buffer): Promise<void> {
    if (bytes.length < 32 || bytes.length > 512)
      throw new AgentError('invalid', `entropy has 32 to 512 bytes, got ${bytes.length}`);
    await this.#call('ADD_ENTROPY', new FieldWriter().bytes('entropy', bytes));
  }

  async setHostname(name: string): Promise<void> {
    await this.#call('SET_HOSTNAME', new FieldWriter().text('hostname', name));
  }

  async freeze(o: { interpreters: boolean; user: boolean }): Promise<void> {
    await this.#call('FREEZE', new FieldWriter().u32('thaw', thawBits(o)));
  }

  async thaw(o: { interpreters: boolean; user: boolean }): Promise<void> {
    await this.#call('THAW', new FieldWriter().u32('thaw', thawBits(o)));
  }

  async sync(): Promise<void> {
    await this.#call('SYNC_DISKS', new FieldWriter(), SYNC_DEADLINE_MS);
  }

  async ping(signal?: AbortSignal): Promise<void> {
    await this.#c.ping({ signal });
  }

  paused(paused: boolean): void {
    this.#c.paused(paused);
  }

  async poweroff(): Promise<void> {
    const request = this.#c.begin('POWEROFF', new FieldWriter());
    // The machine goes down right behind its answer, which may be lost with it.
    this.#c.expectEnd(true);
    const answered = request.answered.catch((error: unknown) => {
      if (error !== this.#c.ended) throw error;
    });
    try {
      await settle(answered, { deadlineMs: SYNC_DEADLINE_MS }, 'poweroff', () => {});
    } catch (error) {
      this.#c.expectEnd(false);
      throw error;
    }
    await this.close();
  }

  async close(): Promise<void> {
    this.#c.end(new AgentError('closed', 'the session was closed'));
    await this.closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #call(verb: Verb, fields: FieldWriter, deadlineMs = CALL_DEADLINE_MS): Promise<void> {
    await this.#c.call(verb, fields, { deadlineMs });
  }
}

function thawBits(o: { interpreters: boolean; user: boolean }): number {
  return (o.interpreters ? 1 : 0) | (o.user ? 2 : 0);
}

function hex(name: string, value: string): Buffer {
  if (!/^[0-9a-f]{32}$/i.test(value))
    throw new AgentError('invalid', `${name} is 32 hex digits, got ${JSON.stringify(value)}`);
  return Buffer.from(value, 'hex');
}

const hookOutcomes = ['ok', 'failed', 'timeout'] as const;

function readHook(hook: Buffer): HelloReply['hooks'][number] {
  if (hook.length < 8) throw broken(`a hook of ${hook.length} bytes`);
  const outcome = hookOutcomes[hook.readUInt32LE(0)];
  if (outcome === undefined) throw broken(`hook outcome ${hook.readUInt32LE(0)}`);
  return { outcome, code: hook.readUInt32LE(4), name: hook.toString('utf8', 8) };
}
