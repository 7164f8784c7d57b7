/** Branches of sandboxes, and the lineage that they make. */
import {
  BranchReply,
  BranchRequest,
  closed,
  PromoteReply,
  PromoteRequest,
  paths,
  RemovalReport,
  SnapshotInfo,
  TagRequest,
  Tree,
} from '@forkd/api';
import Type from 'typebox';
import { callerSignal, type Server } from '../http.js';
import type { Services } from '../services.js';
import { treeOf } from '../tree.js';

const SandboxParams = Type.Object({ id: Type.String() });
const SnapshotParams = Type.Object({ ref: Type.String() });
const GcQuery = closed({ dry_run: Type.Optional(Type.String({ pattern: '^(true|false)$' })) });
const Answer = Type.Union([SnapshotInfo, BranchReply]);

export function branchRoutes(server: Server, services: Services): void {
  const { branches, snapshots } = services;
  server.post(
    '/v1/sandboxes/:id/branch',
    {
      schema: {
        tags: ['sandboxes'],
        summary: 'Captures a running sandbox into a new snapshot; it runs on.',
        description:
          '201 when the snapshot is ready. 202 with `wait: false`, as soon as the sandbox runs again. With `n`, 201 when all children run, 207 when some do.',
        params: SandboxParams,
        body: BranchRequest,
        response: { 201: Answer, 202: SnapshotInfo, 207: BranchReply },
      },
      // Nothing needs to be said.
      preValidation: async (request) => {
        request.body ??= {};
      },
    },
    async (request, reply) => {
      const outcome = await branches.branch(request.params.id, request.body, callerSignal(reply));
      return reply.code(outcome.status).send(outcome.reply as never);
    },
  );
  server.post(
    '/v1/sandboxes/:id/promote',
    {
      schema: {
        tags: ['sandboxes'],
        summary: 'Lets it take the place of another sandbox, which is branched and then removed.',
        params: SandboxParams,
        body: PromoteRequest,
        response: { 200: PromoteReply },
      },
    },
    async (request, reply) => branches.promote(request.params.id, request.body.over, callerSignal(reply)),
  );
  server.post(
    '/v1/snapshots/:ref/tag',
    {
      schema: {
        tags: ['snapshots'],
        summary: 'Gives a snapshot one more tag.',
        params: SnapshotParams,
        body: TagRequest,
        response: { 200: SnapshotInfo },
      },
    },
    async (request) => snapshots.tag(request.params.ref, request.body.tag, request.body.move === true),
  );
  server.post(
    paths.snapshotGc(),
    {
      schema: {
        tags: ['snapshots'],
        summary: 'Removes snapshots that have no tag and that nothing needs.',
        querystring: GcQuery,
        response: { 200: RemovalReport },
      },
    },
    async (request) => snapshots.gc(request.query.dry_run === 'true'),
  );
  server.get(
    paths.tree(),
    {
      schema: {
        tags: ['snapshots'],
        summary: 'Templates, snapshots and sandboxes by lineage, with what each adds.',
        response: { 200: Tree },
      },
    },
    async () => treeOf(services),
  );
}
