/** Snapshots. */
import {
  CreateSnapshotRequest,
  closed,
  paths,
  RemovalReport,
  SnapshotDetail,
  SnapshotInfo,
  VerifyReport,
} from '@forkd/api';
import Type from 'typebox';
import { callerSignal, type Server } from '../http.js';
import type { Services } from '../services.js';

const Params = Type.Object({ ref: Type.String() });
const RemoveQuery = closed({ cascade: Type.Optional(Type.String({ pattern: '^(true|false)$' })) });
const tags = ['snapshots'];

export function snapshotRoutes(server: Server, { snapshots, templates, builds }: Services): void {
  server.get(
    paths.snapshots(),
    {
      schema: { tags, summary: 'All snapshots, newest first.', response: { 200: Type.Array(SnapshotInfo) } },
    },
    async () => snapshots.list(),
  );
  server.post(
    paths.snapshots(),
    {
      schema: {
        tags,
        summary: 'Builds a template and waits for its snapshot.',
        body: CreateSnapshotRequest,
        response: { 201: SnapshotInfo },
      },
    },
    async (request, reply) => {
      const template = await templates.source(request.body.template, request.body.tag);
      const result = await builds.follow(template, {
        tag: request.body.tag ?? template.name,
        noCache: false,
        signal: callerSignal(reply),
        onEvent: () => undefined,
      });
      return reply.code(201).send(await snapshots.info(result.snapshotId));
    },
  );
  server.get(
    '/v1/snapshots/:ref',
    {
      schema: { tags, summary: 'A snapshot by tag or id.', params: Params, response: { 200: SnapshotInfo } },
    },
    async (request) => snapshots.info(request.params.ref),
  );
  server.get(
    '/v1/snapshots/:ref/info',
    { schema: { tags, summary: 'All about a snapshot.', params: Params, response: { 200: SnapshotDetail } } },
    async (request) => snapshots.detail(request.params.ref),
  );
  server.post(
    '/v1/snapshots/:ref/verify',
    {
      schema: {
        tags,
        summary: 'Reads every byte against its hash.',
        params: Params,
        response: { 200: VerifyReport },
      },
    },
    async (request, reply) => {
      const { id, problems, bytesRead } = await snapshots.verify(request.params.ref, callerSignal(reply));
      return { id, ok: problems.length === 0, problems, bytes_read: bytesRead };
    },
  );
  server.post(
    '/v1/snapshots/:ref/flatten',
    {
      schema: {
        tags,
        summary:
          'Lets a branch stand alone: its memory becomes a base, its disk one file. What it shows stays the same.',
        params: Params,
        response: { 200: SnapshotDetail },
      },
    },
    async (request) => snapshots.flatten(request.params.ref),
  );
  server.delete(
    '/v1/snapshots/:ref',
    {
      schema: {
        tags,
        summary: 'Removes a snapshot and its tags; with `cascade` also all that stand on it.',
        params: Params,
        querystring: RemoveQuery,
        response: { 200: RemovalReport, 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const cascade = request.query.cascade === 'true';
      const report = await snapshots.remove(request.params.ref, cascade);
      return cascade ? reply.code(200).send(report) : reply.code(204).send(null);
    },
  );
}
