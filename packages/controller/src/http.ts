/** What all routes have in common: types from schemas, the end of a request's caller, ndjson. */
import { Readable } from 'node:stream';
import type {
  FastifyBaseLogger,
  FastifyInstance,
  FastifyReply,
  FastifyTypeProvider,
  RawReplyDefaultExpression,
  RawRequestDefaultExpression,
  RawServerDefault,
} from 'fastify';
import type { Static, TSchema } from 'typebox';

/** Types requests by the schemas that validate them. */
export interface SchemaTypes extends FastifyTypeProvider {
  validator: this['schema'] extends TSchema ? Static<this['schema']> : unknown;
  serializer: this['schema'] extends TSchema ? Static<this['schema']> : unknown;
}

export type Server = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  FastifyBaseLogger,
  SchemaTypes
>;

/** Aborts when the caller of a request goes away before its answer is complete. */
export function callerSignal(reply: { raw: FastifyReply['raw'] }): AbortSignal {
  const controller = new AbortController();
  const { raw } = reply;
  raw.once('close', () => {
    if (!raw.writableFinished) controller.abort();
  });
  return controller.signal;
}

/** Time between empty lines of a stream that has nothing to say, in milliseconds: both sides notice when the other is gone. */
const heartbeatMs = 10_000;
/** Text that may wait for a reader before the stream is given up, in characters. */
const maxWaiting = 32 * 1024 * 1024;

/** A body of JSON lines. */
export class LineStream extends Readable {
  /** Resolves at the first line. */
  readonly first: Promise<void>;
  readonly #heartbeat: NodeJS.Timeout;
  #onFirst: () => void = () => undefined;

  constructor() {
    super({ encoding: 'utf8' });
    this.first = new Promise((resolve) => {
      this.#onFirst = resolve;
    });
    this.#heartbeat = setInterval(() => this.#write('\n'), heartbeatMs);
  }

  send(value: unknown): void {
    this.#onFirst();
    this.#write(`${JSON.stringify(value)}\n`);
  }

  /** Sends a last line. */
  finish(value: unknown): void {
    this.send(value);
    clearInterval(this.#heartbeat);
    if (!this.destroyed) this.push(null);
  }

  override _read(): void {
    // Lines come when they come.
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    clearInterval(this.#heartbeat);
    callback(error);
  }

  #write(text: string): void {
    if (this.destroyed || this.readableEnded) return;
    if (this.readableLength > maxWaiting) this.destroy(new Error('the reader of a stream does not read'));
    else this.push(text);
  }
}
