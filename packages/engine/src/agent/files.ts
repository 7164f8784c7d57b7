/** Files of the guest. */
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import pLimit from 'p-limit';
import { readableOf, writableOf } from './channels.js';
import type { Conversation } from './conversation.js';
import { AgentError } from './errors.js';
import { FieldWriter } from './fields.js';
import { collectRecords, readInfo } from './records.js';
import type { Verb } from './request.js';
import { refuseAborted } from './settle.js';
import type { AgentFiles, DirectoryEntry, FileInfo, GuestPath, Watch, WriteOptions } from './types.js';
import { watch } from './watch.js';

const CALL_DEADLINE_MS = 60_000;
/** Calls under way at a time: the agent refuses a burst that its workers cannot take, so the rest waits here. */
const CALLS_AT_ONCE = 32;
/** Removing a large tree, or answering for a large directory, is work. */
const LONG_DEADLINE_MS = 600_000;

export class GuestFiles implements AgentFiles {
  readonly #c: Conversation;
  readonly #limit = pLimit(CALLS_AT_ONCE);

  constructor(c: Conversation) {
    this.#c = c;
  }

  async read(
    path: GuestPath,
    o: { offset?: bigint | number; length?: bigint | number; signal?: AbortSignal } = {},
  ): Promise<{ info: FileInfo; stream: Readable }> {
    refuseAborted('read', o.signal);
    const fields = at(path);
    if (o.offset !== undefined) fields.u64('offset', o.offset);
    if (o.length !== undefined) fields.u64('length', o.length);
    const request = this.#c.begin('READ', fields, { outputs: [{ channel: 1, holdEnd: true }] });
    const answer = await this.#c.wait(request, request.answered, {
      signal: o.signal,
      deadlineMs: CALL_DEADLINE_MS,
    });
    const stop = (): void => this.#c.reset(request, new AgentError('aborted', 'the read was given up'));
    const stream = readableOf(request.output(1), stop);
    if (o.signal) {
      o.signal.addEventListener('abort', stop, { once: true });
      stream.once('close', () => o.signal?.removeEventListener('abort', stop));
    }
    return { info: readInfo(answer), stream };
  }

  async write(path: GuestPath, source: Readable | Buffer, o: WriteOptions = {}): Promise<FileInfo> {
    refuseAborted('write', o.signal);
    const fields = at(path).flag('mkdirs', o.mkdirs);
    if (o.mode !== undefined) fields.u32('mode', permissions(o.mode));
    if (o.uid !== undefined) fields.u32('uid', o.uid);
    if (o.gid !== undefined) fields.u32('gid', o.gid);
    const request = this.#c.begin('WRITE', fields, { input: true });
    const wait = { signal: o.signal };
    try {
      await this.#c.wait(request, request.answered, { ...wait, deadlineMs: CALL_DEADLINE_MS });
      const target = writableOf(request.input!, false);
      if (Buffer.isBuffer(source)) target.end(source);
      else {
        await this.#c.wait(request, pipeline(source, target), wait);
      }
      return readInfo(await this.#c.wait(request, request.done, wait));
    } catch (error) {
      if (!Buffer.isBuffer(source)) source.destroy();
      // Where the guest failed, its reason matters, not that the pipe broke.
      if (request.isOver) await request.done;
      this.#c.reset(request, new AgentError('aborted', 'the write was given up', { cause: error }));
      throw error;
    }
  }

  async stat(path: GuestPath, o: { follow?: boolean } = {}): Promise<FileInfo> {
    const fields = at(path);
    if (o.follow !== undefined) fields.u32('follow', o.follow ? 1 : 0);
    return readInfo(await this.#call('STAT', fields));
  }

  async list(path: GuestPath, o: { signal?: AbortSignal } = {}): Promise<DirectoryEntry[]> {
    refuseAborted('list', o.signal);
    const request = this.#c.begin('LIST', at(path), { outputs: [{ channel: 1, holdEnd: true }] });
    const stream = readableOf(request.output(1), () =>
      this.#c.reset(request, new AgentError('aborted', 'the listing was given up')),
    );
    const entries = collectRecords(stream, (fields): DirectoryEntry => {
      const rawName = Buffer.from(fields.bytes('name'));
      return { name: rawName.toString('utf8'), rawName, ...readInfo(fields) };
    });
    return await this.#c.wait(request, entries, { signal: o.signal, deadlineMs: LONG_DEADLINE_MS });
  }

  async mkdir(path: GuestPath, o: { parents?: boolean; mode?: number } = {}): Promise<void> {
    const fields = at(path).flag('parents', o.parents);
    if (o.mode !== undefined) fields.u32('mode', permissions(o.mode));
    await this.#call('MKDIR', fields);
  }

  async rename(from: GuestPath, to: GuestPath, o: { replace?: boolean } = {}): Promise<void> {
    const fields = at(from).text('path2', checked(to));
    if (o.replace !== undefined) fields.u32('replace', o.replace ? 1 : 0);
    await this.#call('RENAME', fields);
  }

  async remove(path: GuestPath, o: { recursive?: boolean; force?: boolean } = {}): Promise<void> {
    const fields = at(path).flag('recursive', o.recursive).flag('force', o.force);
    await this.#call('REMOVE', fields, LONG_DEADLINE_MS);
  }

  async symlink(target: GuestPath, path: GuestPath): Promise<void> {
    await this.#call('SYMLINK', new FieldWriter().text('path', target).text('path2', checked(path)));
  }

  async setAttributes(
    path: GuestPath,
    o: { mode?: number; uid?: number; gid?: number; mtimeNs?: bigint },
  ): Promise<void> {
    const fields = at(path);
    if (o.mode !== undefined) fields.u32('mode', permissions(o.mode));
    if (o.uid !== undefined) fields.u32('uid', o.uid);
    if (o.gid !== undefined) fields.u32('gid', o.gid);
    if (o.mtimeNs !== undefined) fields.u64('mtime', o.mtimeNs);
    await this.#call('SETATTR', fields);
  }

  async watch(path: GuestPath, o: { recursive?: boolean; signal?: AbortSignal } = {}): Promise<Watch> {
    return await watch(this.#c, checked(path), o);
  }

  async #call(verb: Verb, fields: FieldWriter, deadlineMs = CALL_DEADLINE_MS) {
    return await this.#limit(() => this.#c.call(verb, fields, { deadlineMs }));
  }
}

function at(path: GuestPath): FieldWriter {
  return new FieldWriter().text('path', checked(path));
}

function checked(path: GuestPath): GuestPath {
  if (path.length === 0) throw new AgentError('invalid', 'the path is empty');
  return path;
}

function permissions(mode: number): number {
  if (!Number.isInteger(mode) || mode < 0 || mode > 0o7777)
    throw new AgentError('invalid', `a mode is from 0 to 0o7777, got ${mode}`);
  return mode;
}
