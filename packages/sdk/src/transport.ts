/** Requests to the daemon over one pool of kept connections. */
import type { Readable } from 'node:stream';
import type { Dispatcher, Pool } from 'undici';
import type { Address } from './address.js';
import { clientError, errorOfBody, ForkdError, isErrorBody } from './errors.js';

/** What a request may carry. */
export interface RequestOptions {
  query?: Record<string, string | undefined>;
  /** Sent as JSON. */
  json?: unknown;
  /** Sent as it is, application/octet-stream. */
  body?: Readable | Uint8Array;
  signal?: AbortSignal | undefined;
  /** Milliseconds until the answer begins. Default 60000. */
  timeoutMs?: number;
  /** Milliseconds that an answer may be silent once it has begun. Default 60000. */
  silenceMs?: number;
}

/** As much of a JSON schema as an answer is checked against: fields that are missing are noticed, new ones are welcome. */
export interface Shape {
  readonly type?: unknown;
  readonly required?: readonly string[];
  readonly items?: unknown;
}

export type Answer = Dispatcher.ResponseData;

/** One daemon's connections. */
export class Transport {
  readonly address: Address;
  #pool: Promise<Pool> | undefined;

  constructor(address: Address) {
    this.address = address;
  }

  /** Headers that every request carries. */
  headers(): Record<string, string> {
    return this.address.token === null ? {} : { authorization: `Bearer ${this.address.token}` };
  }

  /** Sends a request and hands out its answer once the headers are there; throws what an error answer says. */
  async send(method: Dispatcher.HttpMethod, path: string, options: RequestOptions = {}): Promise<Answer> {
    const { json, body, signal } = options;
    const headers = this.headers();
    if (json !== undefined) headers['content-type'] = 'application/json';
    else if (body !== undefined) headers['content-type'] = 'application/octet-stream';
    let answer: Answer;
    try {
      this.#pool ??= openPool(this.address);
      answer = await (await this.#pool).request({
        method,
        path: withQuery(path, options.query),
        headers,
        body: json === undefined ? (body ?? null) : JSON.stringify(json),
        signal: signal ?? null,
        headersTimeout: options.timeoutMs ?? 60_000,
        bodyTimeout: options.silenceMs ?? 60_000,
      });
    } catch (error) {
      throw this.wrap(error, signal, `${method} ${path}`, options.timeoutMs ?? 60_000);
    }
    if (answer.statusCode >= 400) throw await this.#errorOf(answer, signal);
    return answer;
  }

  /** Sends a request whose answer is JSON of `shape`. */
  async json<T>(
    method: Dispatcher.HttpMethod,
    path: string,
    shape: Shape,
    options: RequestOptions = {},
  ): Promise<T> {
    const answer = await this.send(method, path, options);
    const text = await this.#text(answer, options.signal);
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (cause) {
      throw this.badAnswer(`${method} ${path} answered no JSON`, cause);
    }
    const problem = mismatch(value, shape);
    if (problem !== null) throw this.badAnswer(`${method} ${path}: ${problem}`);
    return value as T;
  }

  /** Sends a request whose answer has no body of interest. */
  async done(method: Dispatcher.HttpMethod, path: string, options: RequestOptions = {}): Promise<void> {
    const answer = await this.send(method, path, options);
    await this.#text(answer, options.signal);
  }

  /** Sends a request and yields the lines of its ndjson answer. Empty lines keep the connection alive and mean nothing. */
  async *lines(
    method: Dispatcher.HttpMethod,
    path: string,
    options: RequestOptions = {},
  ): AsyncGenerator<unknown, void, undefined> {
    const answer = await this.send(method, path, options);
    const decoder = new TextDecoder();
    let rest = '';
    try {
      for await (const chunk of answer.body) {
        rest += decoder.decode(chunk as Uint8Array, { stream: true });
        let end = rest.indexOf('\n');
        while (end >= 0) {
          const line = rest.slice(0, end);
          rest = rest.slice(end + 1);
          if (line !== '') yield this.#parseLine(line, path);
          end = rest.indexOf('\n');
        }
      }
    } catch (error) {
      throw this.wrap(error, options.signal, `${method} ${path}`, options.silenceMs ?? 60_000);
    } finally {
      // The consumer may have stopped early: that cancels the request.
      answer.body.on('error', () => undefined).destroy();
    }
    if (rest.trim() !== '') throw this.badAnswer(`${path} ended within a line`);
  }

  /** Turns whatever was thrown while talking to the daemon into a ForkdError. */
  wrap(error: unknown, signal: AbortSignal | undefined, what: string, limitMs: number): ForkdError {
    if (error instanceof ForkdError) return error;
    if (signal?.aborted) return clientError('cancelled', {}, { cause: error });
    const { code, message } = describe(error);
    if (code === 'UND_ERR_HEADERS_TIMEOUT' || code === 'UND_ERR_BODY_TIMEOUT') {
      return clientError('timeout', { what, limit: `${limitMs / 1000} s` }, { cause: error });
    }
    if (unreachableCodes.has(code)) {
      return clientError(
        'daemon_unreachable',
        { where: this.address.where, problem: problems[code] ?? message },
        { cause: error },
      );
    }
    if (error instanceof Error && error.name === 'HTTPParserError')
      return this.badAnswer('it does not speak HTTP', error);
    return clientError('connection_lost', { problem: message }, { cause: error });
  }

  badAnswer(problem: string, cause?: unknown): ForkdError {
    return clientError('bad_answer', { where: this.address.where, problem }, { cause });
  }

  /** Closes the connections; requests that run are broken off. */
  async close(): Promise<void> {
    await (await this.#pool)?.destroy();
  }

  async #text(answer: Answer, signal: AbortSignal | undefined): Promise<string> {
    try {
      return await answer.body.text();
    } catch (error) {
      throw this.wrap(error, signal, 'reading an answer', 60_000);
    }
  }

  async #errorOf(answer: Answer, signal: AbortSignal | undefined): Promise<ForkdError> {
    const text = await this.#text(answer, signal);
    return errorOfText(text, answer.statusCode) ?? this.badAnswer(`status ${answer.statusCode}`);
  }

  #parseLine(line: string, path: string): unknown {
    try {
      return JSON.parse(line);
    } catch (cause) {
      throw this.badAnswer(`${path} answered a line that is no JSON`, cause);
    }
  }
}

/** undici is loaded with the first request: a command line that only streams a command has none, and starts sooner by what that takes. */
async function openPool({ origin, socketPath }: Address): Promise<Pool> {
  const { Pool } = await import('undici');
  return new Pool(origin, {
    keepAliveTimeout: 30_000,
    // What the daemon says of its own patience (72 s) is not taken up: two clocks that run out at once make a request meet a closing connection.
    keepAliveMaxTimeout: 30_000,
    connectTimeout: 10_000,
    ...(socketPath !== null && { socketPath }),
  });
}

/** The error that the text of an answer stands for; null when it is not one of forkd's. */
export function errorOfText(text: string, status: number): ForkdError | null {
  try {
    const value: unknown = JSON.parse(text);
    return isErrorBody(value) ? errorOfBody(value, status) : null;
  } catch {
    return null;
  }
}

const unreachableCodes = new Set([
  'ENOENT',
  'ECONNREFUSED',
  'EACCES',
  'ENOTSOCK',
  'ENOTDIR',
  'ENOTFOUND',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
]);

const problems: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such socket',
  ECONNREFUSED: 'nobody listens there',
  EACCES: 'this user may not connect to it',
};

/** Code and message of an error; of a failed try of several addresses, those of the first. */
function describe(error: unknown): { code: string; message: string } {
  if (!(error instanceof Error)) return { code: '', message: String(error) };
  const first = error instanceof AggregateError ? (error.errors[0] as unknown) : error;
  const { code, message } = first as { code?: unknown; message?: unknown };
  return { code: typeof code === 'string' ? code : '', message: String(message || code || error.name) };
}

function withQuery(path: string, query: RequestOptions['query']): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined) parameters.set(name, value);
  }
  const text = parameters.toString();
  return text === '' ? path : `${path}?${text}`;
}

/** What about `value` does not fit `shape`; null when all fields that a client relies on are there. */
export function mismatch(value: unknown, shape: Shape): string | null {
  if (shape.type === 'array') {
    if (!Array.isArray(value)) return 'not an array';
    for (const item of value) {
      const problem = mismatch(item, (shape.items ?? {}) as Shape);
      if (problem !== null) return problem;
    }
    return null;
  }
  if (shape.type === 'object') {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return 'not an object';
    const missing = shape.required?.find((name) => !Object.hasOwn(value, name));
    return missing === undefined ? null : `no field "${missing}"`;
  }
  return null;
}
