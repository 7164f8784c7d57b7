import { Client } from 'undici';
import { deadline } from '../deadline.js';
import { EngineError, messageOf } from '../errors.js';
import { connectUnix } from '../unix-socket.js';

/** How long a request may take where the caller does not say, ms. */
const REQUEST_MS = 20_000;

/** Longest answer that is read, bytes; it has kilobytes. */
const LONGEST_ANSWER = 1024 * 1024;

export interface RequestOptions {
  signal?: AbortSignal | undefined;
  /** Default 20000. */
  timeoutMs?: number;
}

/** A request that Firecracker has refused, or could not carry out. */
export class FirecrackerRefusal extends EngineError {
  readonly status: number;
  /** What it said, alone. */
  readonly fault: string;

  constructor(request: string, status: number, fault: string) {
    super('vmm_failed', `Firecracker refused ${request}: ${fault}`, { details: { request, status, fault } });
    this.name = 'FirecrackerRefusal';
    this.status = status;
    this.fault = fault;
  }
}

/** What `GET /` tells. */
export interface InstanceInfo {
  id: string;
  state: 'Not started' | 'Running' | 'Paused';
  vmm_version: string;
}

/** Firecracker's API over its unix socket. Requests are carried out one after another, which is how it serves them. */
export class FirecrackerApi {
  readonly #client: Client;

  /** @param path where its socket is now: a run directory may be renamed */
  constructor(path: () => string) {
    this.#client = new Client('http://localhost', {
      connect: (_options, callback) => {
        connectUnix(path()).then(
          (socket) => callback(null, socket),
          (error: Error) => callback(error, null),
        );
      },
      // Bounded by the signal of each request.
      headersTimeout: 0,
      bodyTimeout: 0,
      maxResponseSize: LONGEST_ANSWER,
    });
  }

  async get<T>(path: string, options: RequestOptions = {}): Promise<T> {
    return (await this.#request('GET', path, undefined, options)) as T;
  }

  async put(path: string, body: object, options: RequestOptions = {}): Promise<void> {
    await this.#request('PUT', path, body, options);
  }

  async patch(path: string, body: object, options: RequestOptions = {}): Promise<void> {
    await this.#request('PATCH', path, body, options);
  }

  /** Fails what is under way. Fine when it is closed. */
  async close(): Promise<void> {
    await this.#client.destroy();
  }

  /** @throws FirecrackerRefusal; EngineError vmm_failed when the connection breaks, timeout */
  async #request(
    method: 'GET' | 'PUT' | 'PATCH',
    path: string,
    body: object | undefined,
    options: RequestOptions,
  ): Promise<unknown> {
    const request = `${method} ${path}`;
    using limit = deadline(`Firecracker's ${request}`, options.timeoutMs ?? REQUEST_MS, options.signal);
    let status: number;
    let text: string;
    try {
      const answer = await this.#client.request({
        method,
        path,
        signal: limit.signal,
        ...(body && { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
      });
      status = answer.statusCode;
      text = await answer.body.text();
    } catch (error) {
      if (limit.signal.aborted) throw limit.signal.reason;
      if (error instanceof EngineError) throw error;
      throw new EngineError('vmm_failed', `Firecracker did not answer ${request}: ${messageOf(error)}`, {
        cause: error,
      });
    }
    if (status < 200 || status > 299) throw new FirecrackerRefusal(request, status, faultOf(text));
    return text === '' ? undefined : parse(request, text);
  }
}

function parse(request: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new EngineError('vmm_failed', `Firecracker answered ${request} with what is not JSON`, {
      cause: error,
    });
  }
}

/** The reason in an error's body; the body itself where it has none. */
export function faultOf(text: string): string {
  try {
    const { fault_message: fault } = JSON.parse(text) as { fault_message?: unknown };
    if (typeof fault === 'string') return fault;
  } catch {
    // Told as it came.
  }
  return text.slice(0, 500) || 'no reason given';
}
