/** Files of a sandbox. */
import { Readable } from 'node:stream';
import { FileInfo, FileList, fileInfoHeader, paths } from '@forkd/api';
import type { Transport } from './transport.js';

/** How a file is written. */
export interface WriteFileOptions {
  /** Permission bits; default 0644, or those of the file that is replaced. */
  mode?: number;
  /** Make missing parent directories. */
  mkdirs?: boolean;
  signal?: AbortSignal;
}

/** A part of a file, in bytes. */
export interface ReadFileOptions {
  offset?: number;
  length?: number;
  signal?: AbortSignal;
}

/** Transfers of large files over a slow guest take their time; silence is what is bounded. */
const transferMs = 30 * 60_000;

export class SandboxFiles {
  readonly #transport: Transport;
  readonly #id: string;

  constructor(transport: Transport, id: string) {
    this.#transport = transport;
    this.#id = id;
  }

  /** Reads a file whole, or the part that is asked for. */
  async read(path: string, options: ReadFileOptions = {}): Promise<Buffer> {
    const { stream } = await this.readStream(path, options);
    const chunks: Buffer[] = [];
    for await (const chunk of stream) chunks.push(chunk as Buffer);
    return Buffer.concat(chunks);
  }

  /** Reads a file whole as UTF-8. */
  async readText(path: string, options: ReadFileOptions = {}): Promise<string> {
    return (await this.read(path, options)).toString('utf8');
  }

  /** Reads a file as a stream. Destroy the stream if it is not read to its end. */
  async readStream(
    path: string,
    options: ReadFileOptions = {},
  ): Promise<{ info: FileInfo; stream: Readable }> {
    const query = { path, offset: options.offset?.toString(), length: options.length?.toString() };
    const url = paths.files(this.#id);
    const answer = await this.#transport.send('GET', url, { query, signal: options.signal });
    const header = answer.headers[fileInfoHeader];
    try {
      return { info: JSON.parse(String(header)) as FileInfo, stream: answer.body };
    } catch (cause) {
      answer.body.on('error', () => undefined).destroy();
      throw this.#transport.badAnswer(`GET ${url} has no header ${fileInfoHeader}`, cause);
    }
  }

  /** Replaces a file atomically; when it fails, the old file stays. */
  async write(
    path: string,
    content: string | Uint8Array | AsyncIterable<Uint8Array> | Readable,
    options: WriteFileOptions = {},
  ): Promise<FileInfo> {
    const body =
      typeof content === 'string'
        ? Buffer.from(content, 'utf8')
        : content instanceof Uint8Array || content instanceof Readable
          ? content
          : Readable.from(content, { objectMode: false });
    const query = {
      path,
      mode: options.mode?.toString(8),
      mkdirs: options.mkdirs === undefined ? undefined : String(options.mkdirs),
    };
    return this.#transport.json<FileInfo>('PUT', paths.files(this.#id), FileInfo, {
      query,
      body,
      signal: options.signal,
      timeoutMs: transferMs,
    });
  }

  /** Facts of a file; of a symbolic link, the link itself. */
  async stat(path: string, signal?: AbortSignal): Promise<FileInfo> {
    return this.#transport.json<FileInfo>('GET', paths.fileStat(this.#id), FileInfo, {
      query: { path },
      signal,
    });
  }

  /** Entries of a directory, by name. */
  async list(path: string, signal?: AbortSignal): Promise<FileInfo[]> {
    return this.#transport.json<FileInfo[]>('GET', paths.fileList(this.#id), FileList, {
      query: { path },
      signal,
    });
  }

  /** Makes a directory; with `parents`, those above it too, and it may exist. */
  async mkdir(path: string, options: { mode?: number; parents?: boolean } = {}): Promise<void> {
    await this.#transport.done('POST', paths.fileMkdir(this.#id), { json: { path, ...options } });
  }

  /** Removes a file, an empty directory, or with `recursive` a tree. */
  async remove(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    const query = { path, recursive: options.recursive ? 'true' : undefined };
    await this.#transport.done('DELETE', paths.files(this.#id), { query, timeoutMs: transferMs });
  }

  /** Renames, replacing what is there. */
  async rename(from: string, to: string): Promise<void> {
    await this.#transport.done('POST', paths.fileRename(this.#id), { json: { from, to } });
  }
}
