/** Templates. */
import { type BuildEvent, paths, TemplateDetail, TemplateInfo, type TemplateSource } from '@forkd/api';
import type { Transport } from './transport.js';

const templateList = { type: 'array', items: TemplateInfo };

/** Until a build's first line, ms: what runs guests here may have to be proven by a boot first, on a host that is emulated itself. */
const firstLineMs = 15 * 60_000;

export interface BuildOptions {
  /** Tag that is moved to the snapshot. Default: the template's name. */
  tag?: string;
  /** Build every stage anew. */
  noCache?: boolean;
  /** What runs it. Default: the best that works on the host. */
  engine?: 'qemu' | 'firecracker';
  /** Cancels the build. */
  signal?: AbortSignal;
}

export class Templates {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  async list(signal?: AbortSignal): Promise<TemplateInfo[]> {
    return this.#transport.json<TemplateInfo[]>('GET', paths.templates(), templateList, { signal });
  }

  async get(name: string, signal?: AbortSignal): Promise<TemplateDetail> {
    return this.#transport.json<TemplateDetail>('GET', paths.template(name), TemplateDetail, { signal });
  }

  /**
   * Builds a template and tells how it goes. The last event is `done` or `failed`; leaving the loop early, or aborting `signal`,
   * cancels the build.
   *
   * @example
   * for await (const event of client.templates.build('python')) {
   *   if (event.type === 'step') console.log(event.title, event.state);
   * }
   */
  async *build(
    template: TemplateSource,
    options: BuildOptions = {},
  ): AsyncGenerator<BuildEvent, void, undefined> {
    const json = { template, tag: options.tag, no_cache: options.noCache, engine: options.engine };
    const path = paths.buildTemplate();
    let last: BuildEvent | undefined;
    for await (const line of this.#transport.lines('POST', path, {
      json,
      signal: options.signal,
      timeoutMs: firstLineMs,
    })) {
      const event = line as BuildEvent;
      if (typeof event?.type !== 'string') throw this.#transport.badAnswer(`${path}: an event without type`);
      last = event;
      yield event;
    }
    if (last?.type !== 'done' && last?.type !== 'failed') {
      throw this.#transport.badAnswer(`POST ${path} ended without a result`);
    }
  }
}
