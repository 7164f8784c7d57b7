/** One request: what was asked, what has come back, and its streams. */
import { statusCodes, type verbs } from '@forkd/wire';
import type { InChannel, OutChannel } from './channels.js';
import { AgentError, type AgentErrorCode, agentErrorCodes } from './errors.js';
import { broken, errnoName, FieldReader } from './fields.js';

export type Verb = keyof typeof verbs;

interface Deferred<T> {
  promise: Promise<T>;
  resolve(value: T): void;
  reject(error: Error): void;
}

function deferred<T>(): Deferred<T> {
  let resolve!: (value: T) => void;
  let reject!: (error: Error) => void;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  // Whoever waits for the answer only has no ear for the end, and the other way round.
  promise.catch(() => {});
  return { promise, resolve, reject };
}

export class Request {
  readonly id: number;
  readonly verb: Verb;
  /** Fields, kept until the guest has shown that it has the whole request. */
  payload: Buffer | null;
  readonly streaming: boolean;
  readonly input: OutChannel | null;
  readonly outputs: readonly InChannel[];
  /** RES has come. */
  isAnswered = false;
  /** Nothing more will come. */
  isOver = false;
  /** The host wants no more of it. */
  isReset = false;
  readonly #answered = deferred<FieldReader>();
  readonly #done = deferred<FieldReader>();
  /** Told when an answer comes for which nobody waits any more. */
  onLateAnswer: ((fields: FieldReader) => void) | null = null;

  constructor(
    id: number,
    verb: Verb,
    payload: Buffer,
    streaming: boolean,
    input: OutChannel | null,
    outputs: readonly InChannel[],
  ) {
    this.id = id;
    this.verb = verb;
    this.payload = payload;
    this.streaming = streaming;
    this.input = input;
    this.outputs = outputs;
  }

  /** RES: rejects when it is an error, or when the session is over first. */
  get answered(): Promise<FieldReader> {
    return this.#answered.promise;
  }

  /** DONE: rejects when its status is an error. */
  get done(): Promise<FieldReader> {
    return this.#done.promise;
  }

  /** The output with this channel number. */
  output(channel: number): InChannel {
    const found = this.outputs.find((output) => output.number === channel);
    if (!found) throw broken(`${this.verb} has no output channel ${channel}`);
    return found;
  }

  /** Takes a RES. Returns true when the request is over with it. */
  answer(payload: Buffer): boolean {
    if (this.isAnswered) return false;
    const fields = readStatus(this.verb, payload);
    this.isAnswered = true;
    this.payload = null;
    if (fields instanceof AgentError) {
      this.fail(fields);
      return true;
    }
    if (this.isReset) this.onLateAnswer?.(fields);
    this.#answered.resolve(fields);
    if (!this.streaming) {
      this.isOver = true;
      this.#done.resolve(fields);
      return true;
    }
    this.input?.open();
    return false;
  }

  /** Takes a DONE. */
  finish(payload: Buffer): void {
    const fields = readStatus(this.verb, payload);
    if (fields instanceof AgentError) {
      this.fail(fields);
      return;
    }
    this.isOver = true;
    this.payload = null;
    this.#answered.resolve(fields);
    this.#done.resolve(fields);
    for (const output of this.outputs) output.close(null);
    this.input?.close(new AgentError('closed', `${this.verb} is over: nobody takes its input`));
  }

  fail(error: AgentError): void {
    this.isOver = true;
    this.payload = null;
    this.#answered.reject(error);
    this.#done.reject(error);
    for (const output of this.outputs) output.close(error);
    this.input?.close(error);
  }

  /** The caller has gone: it hears `error` now, the guest still has to answer. */
  abandon(error: AgentError): void {
    this.isReset = true;
    this.#answered.reject(error);
    this.#done.reject(error);
    for (const output of this.outputs) output.close(error);
    this.input?.close(error);
  }
}

const codes = new Map<number, AgentErrorCode>();
for (const [name, number] of Object.entries(statusCodes)) {
  const code = agentErrorCodes.find((known) => known === name);
  if (code) codes.set(number, code);
}
codes.set(statusCodes.cancelled, 'aborted');

/** `status:u16 errno:u16 zero:u32`, then fields: the fields, or the error that they describe. */
function readStatus(verb: Verb, payload: Buffer): FieldReader | AgentError {
  const status = payload.readUInt16LE(0);
  if (payload.readUInt32LE(4) !== 0) throw broken(`reserved bytes of an answer to ${verb} are not zero`);
  const fields = new FieldReader(payload.subarray(8));
  if (status === statusCodes.ok) return fields;
  const code = codes.get(status);
  if (code === undefined) throw broken(`status ${status} in answer to ${verb}`);
  const errno = errnoName(payload.readUInt16LE(2));
  const message = fields.text('message', `${verb.toLowerCase()} failed`);
  return new AgentError(code, message, errno === undefined ? {} : { errno });
}
