/** Sandboxes: fork, list, look at, remove. */
import {
  closed,
  ForkReport,
  ForkRequest,
  failedChildrenHeader,
  GuestMetrics,
  LogsReply,
  PingReply,
  ProcessList,
  paths,
  SandboxInfo,
} from '@forkd/api';
import Type from 'typebox';
import { ApiError, toApiError } from '../errors.js';
import { callerSignal, type Server } from '../http.js';
import { jsonSafe } from '../json-safe.js';
import type { Services } from '../services.js';

const Params = Type.Object({ id: Type.String() });
const ListQuery = closed({ memory: Type.Optional(Type.String({ pattern: '^(true|false)$' })) });
const ForkAnswer = Type.Union([Type.Array(SandboxInfo), ForkReport]);
const tags = ['sandboxes'];
/** A guest that has not answered a ping by then is taken for unreachable. */
const pingMs = 10_000;

export function sandboxRoutes(server: Server, services: Services): void {
  const { sandboxes, snapshots } = services;
  server.get(
    paths.sandboxes(),
    {
      schema: {
        tags,
        summary: 'All sandboxes, oldest first.',
        querystring: ListQuery,
        response: { 200: Type.Array(SandboxInfo) },
      },
    },
    async (request) => (request.query.memory === 'true' ? sandboxes.listWithMemory() : sandboxes.list()),
  );
  server.post(
    paths.sandboxes(),
    {
      schema: {
        tags,
        summary: 'Forks children of a snapshot.',
        description:
          '201 when all children run, 207 when some do. The array form says in a header how many failed; with `report` the failures are in the answer.',
        body: ForkRequest,
        response: { 201: ForkAnswer, 207: ForkAnswer },
      },
    },
    async (request, reply) => {
      refuseForeign(request.body);
      const id = snapshots.resolve(request.body.snapshot_tag);
      const report = await sandboxes.fork(id, request.body, callerSignal(reply));
      reply.code(report.failures.length === 0 ? 201 : 207);
      if (request.body.report === true) return reply.send(report);
      if (report.failures.length > 0) reply.header(failedChildrenHeader, report.failures.length);
      return reply.send(report.sandboxes);
    },
  );
  server.get(
    '/v1/sandboxes/:id',
    { schema: { tags, summary: 'A sandbox.', params: Params, response: { 200: SandboxInfo } } },
    async (request) => sandboxes.info(request.params.id),
  );
  server.delete(
    '/v1/sandboxes/:id',
    {
      schema: {
        tags,
        summary: 'Ends and removes a sandbox.',
        params: Params,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      await sandboxes.remove(request.params.id);
      return reply.code(204).send(null);
    },
  );
  server.post(
    '/v1/sandboxes/:id/ping',
    { schema: { tags, summary: 'Whether its agent answers.', params: Params, response: { 200: PingReply } } },
    async (request, reply) => {
      const { id } = request.params;
      const began = performance.now();
      const deadline = AbortSignal.timeout(pingMs);
      const signal = AbortSignal.any([callerSignal(reply), deadline]);
      try {
        await (await (await sandboxes.machine(id)).session(signal)).ping(signal);
      } catch (error) {
        if (!deadline.aborted) throw toApiError(error, { sandbox: id });
        throw new ApiError('guest_unreachable', { sandbox: id, problem: `no answer in ${pingMs / 1000} s` });
      }
      return { pong: true as const, pid: 1, round_trip_ms: performance.now() - began };
    },
  );
  server.get(
    '/v1/sandboxes/:id/processes',
    { schema: { tags, summary: 'Its processes.', params: Params, response: { 200: ProcessList } } },
    async (request, reply) => {
      const { id } = request.params;
      try {
        const session = await (await sandboxes.machine(id)).session(callerSignal(reply));
        const all = await session.ps();
        return all.map((info) => ({
          handle: info.handle,
          pid: info.pid,
          role: info.role,
          ...(info.label !== '' && { label: info.label }),
          command: info.command,
          running: info.state === 'running',
          pty: info.pty,
        }));
      } catch (error) {
        throw toApiError(error, { sandbox: id });
      }
    },
  );
  server.get(
    '/v1/sandboxes/:id/logs',
    {
      schema: {
        tags,
        summary: 'End of its console and of its VMM.',
        params: Params,
        response: { 200: LogsReply },
      },
    },
    async (request) => sandboxes.logs(request.params.id),
  );
  server.get(
    '/v1/sandboxes/:id/metrics',
    { schema: { tags, summary: 'Numbers of its kernel.', params: Params, response: { 200: GuestMetrics } } },
    async (request, reply) => {
      const { id } = request.params;
      try {
        const session = await (await sandboxes.machine(id)).session(callerSignal(reply));
        return jsonSafe(await session.metrics()) as GuestMetrics;
      } catch (error) {
        throw toApiError(error, { sandbox: id });
      }
    },
  );
}

/** Fields of forkd v1 that would promise what this daemon does not do. What they only hint at is accepted. */
function refuseForeign(request: ForkRequest): void {
  for (const field of ['per_child_netns', 'hugepages'] as const) {
    if (request[field] === true) throw new ApiError('unsupported', { what: `${field}: true` });
  }
  if (typeof request.memory_limit_mib === 'number') {
    throw new ApiError('unsupported', { what: `memory_limit_mib: ${request.memory_limit_mib}` });
  }
}
