/** Files of a sandbox. Content is streamed, in both directions. */
import { posix } from 'node:path';
import type { Readable } from 'node:stream';
import {
  FileInfo,
  FileList,
  fileInfoHeader,
  MkdirRequest,
  PathQuery,
  quoteValue,
  ReadFileQuery,
  RemoveFileQuery,
  RenameRequest,
  WriteFileQuery,
} from '@forkd/api';
import { AgentError, type AgentFiles, type FileInfo as GuestFileInfo } from '@forkd/engine';
import Type from 'typebox';
import { ApiError, toApiError } from '../errors.js';
import { callerSignal, type Server } from '../http.js';
import type { Services } from '../services.js';
import { contentOf, drain } from '../upload.js';

const Params = Type.Object({ id: Type.String() });
const tags = ['files'];

export function fileRoutes(server: Server, { sandboxes }: Services): void {
  /** Calls the guest; errors name the path. */
  async function withFiles<T>(
    id: string,
    path: string,
    signal: AbortSignal,
    call: (files: AgentFiles) => Promise<T>,
  ): Promise<T> {
    const machine = await sandboxes.machine(id);
    try {
      return await call((await machine.session(signal)).files);
    } catch (error) {
      // Devices, sockets and pipes: the agent's word for it is "unsupported".
      if (error instanceof AgentError && error.message.includes('not a regular file'))
        throw new ApiError('not_a_file', { value: quoteValue(path) }, { cause: error });
      throw toApiError(error, { sandbox: id, value: path });
    }
  }

  server.get(
    '/v1/sandboxes/:id/files',
    {
      schema: {
        tags,
        summary: 'Content of a file; its FileInfo is in a header.',
        params: Params,
        querystring: ReadFileQuery,
        produces: ['application/octet-stream'],
      },
    },
    async (request, reply) => {
      const { path, offset, length } = request.query;
      const signal = callerSignal(reply);
      const { info, stream } = await withFiles(request.params.id, path, signal, (files) =>
        files.read(path, {
          signal,
          ...(offset !== undefined && { offset: BigInt(offset) }),
          ...(length !== undefined && { length: BigInt(length) }),
        }),
      );
      return reply
        .header(fileInfoHeader, headerText(infoOf(path, info)))
        .type('application/octet-stream')
        .send(stream as never);
    },
  );
  // A scope of its own: here a body of any type is content.
  server.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, payload, done) => done(null, payload));
    (scope as Server).put(
      '/v1/sandboxes/:id/files',
      {
        schema: {
          tags,
          summary: 'Replaces a file by the body, atomically.',
          params: Params,
          querystring: WriteFileQuery,
          consumes: ['application/octet-stream'],
          response: { 200: FileInfo },
        },
      },
      async (request, reply) => {
        const { path, mode, mkdirs } = request.query;
        const signal = callerSignal(reply);
        const body = request.body as Readable | undefined;
        const content = body === undefined ? Buffer.alloc(0) : contentOf(body);
        const options = {
          signal,
          ...(mode !== undefined && { mode: Number.parseInt(mode, 8) }),
          mkdirs: mkdirs === 'true',
        };
        try {
          const call = (files: AgentFiles) => files.write(path, content, options);
          return infoOf(path, await withFiles(request.params.id, path, signal, call));
        } catch (error) {
          if (body !== undefined) drain(body);
          throw error;
        }
      },
    );
  });
  server.get(
    '/v1/sandboxes/:id/files/stat',
    {
      schema: {
        tags,
        summary: 'Facts of a file.',
        params: Params,
        querystring: PathQuery,
        response: { 200: FileInfo },
      },
    },
    async (request, reply) => {
      const { path } = request.query;
      const call = (files: AgentFiles) => files.stat(path, { follow: false });
      return infoOf(path, await withFiles(request.params.id, path, callerSignal(reply), call));
    },
  );
  server.get(
    '/v1/sandboxes/:id/files/list',
    {
      schema: {
        tags,
        summary: 'Entries of a directory, by name.',
        params: Params,
        querystring: PathQuery,
        response: { 200: FileList },
      },
    },
    async (request, reply) => {
      const { path } = request.query;
      const signal = callerSignal(reply);
      const entries = await withFiles(request.params.id, path, signal, (files) =>
        files.list(path, { signal }),
      );
      entries.sort((a, b) => Buffer.compare(a.rawName, b.rawName));
      return entries.map((entry) => infoOf(posix.join(path, entry.name), entry, entry.name));
    },
  );
  server.delete(
    '/v1/sandboxes/:id/files',
    {
      schema: {
        tags,
        summary: 'Removes a file or a tree.',
        params: Params,
        querystring: RemoveFileQuery,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { path, recursive } = request.query;
      await withFiles(request.params.id, path, callerSignal(reply), (files) =>
        files.remove(path, { recursive: recursive === 'true' }),
      );
      return reply.code(204).send(null);
    },
  );
  server.post(
    '/v1/sandboxes/:id/files/mkdir',
    {
      schema: {
        tags,
        summary: 'Makes a directory.',
        params: Params,
        body: MkdirRequest,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { path, mode, parents } = request.body;
      await withFiles(request.params.id, path, callerSignal(reply), (files) =>
        files.mkdir(path, { parents: parents === true, ...(mode !== undefined && { mode }) }),
      );
      return reply.code(204).send(null);
    },
  );
  server.post(
    '/v1/sandboxes/:id/files/rename',
    {
      schema: {
        tags,
        summary: 'Renames, replacing what is there.',
        params: Params,
        body: RenameRequest,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { from, to } = request.body;
      await withFiles(request.params.id, from, callerSignal(reply), (files) =>
        files.rename(from, to, { replace: true }),
      );
      return reply.code(204).send(null);
    },
  );
}

function infoOf(path: string, info: GuestFileInfo, name = posix.basename(path)): FileInfo {
  return {
    name: name === '' ? '/' : name,
    path,
    type: info.type === 'character' ? 'char' : info.type,
    size: Number(info.size),
    mode: info.mode,
    uid: info.uid,
    gid: info.gid,
    mtime_ms: Number(info.mtimeNs / 1000n) / 1000,
    ...(info.target !== undefined && { target: info.target }),
  };
}

/** JSON that fits into a header: ASCII only. */
function headerText(value: unknown): string {
  return JSON.stringify(value).replace(
    /[\u007f-\uffff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
