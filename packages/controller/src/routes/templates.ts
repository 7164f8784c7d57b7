/** Templates and their builds. */
import { BuildEvent, BuildRequest, paths, TemplateDetail, TemplateInfo } from '@forkd/api';
import Type from 'typebox';
import { toApiError } from '../errors.js';
import { callerSignal, LineStream, type Server } from '../http.js';
import type { Services } from '../services.js';

const Params = Type.Object({ name: Type.String() });
const tags = ['templates'];

export function templateRoutes(server: Server, { templates, builds }: Services): void {
  server.get(
    paths.templates(),
    {
      schema: {
        tags,
        summary: 'Templates that the daemon knows.',
        response: { 200: Type.Array(TemplateInfo) },
      },
    },
    async () => templates.list(),
  );
  server.get(
    '/v1/templates/:name',
    { schema: { tags, summary: 'A template.', params: Params, response: { 200: TemplateDetail } } },
    async (request) => templates.detail(request.params.name),
  );
  server.post(
    paths.buildTemplate(),
    {
      schema: {
        tags,
        summary: 'Builds a template; answers ndjson.',
        description:
          'One BuildEvent a line; empty lines keep the connection alive. The last event is done or failed.',
        body: BuildRequest,
        response: { 200: BuildEvent },
      },
    },
    async (request, reply) => {
      const { template: source, tag: wanted, no_cache: noCache = false, engine } = request.body;
      const signal = callerSignal(reply);
      const template = await templates.source(source, wanted);
      const tag = wanted ?? template.name;
      const lines = new LineStream();
      const result = builds.follow(template, {
        tag,
        noCache,
        ...(engine !== undefined && { engine }),
        signal,
        onEvent: (event) => lines.send(event),
      });
      try {
        // What fails before the first step is an error answer; later only the stream can tell.
        await Promise.race([lines.first, result]);
      } catch (error) {
        lines.destroy();
        throw error;
      }
      result.then(
        (done) =>
          lines.finish({ type: 'done', tag, snapshot_id: done.snapshotId, cached: done.cached, ms: done.ms }),
        (error: unknown) => lines.finish({ type: 'failed', error: toApiError(error).body }),
      );
      return reply.type('application/x-ndjson').send(lines as never);
    },
  );
}
