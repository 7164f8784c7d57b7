/** The daemon and its host. */
import { closed, DaemonInfo, Health, HostFacts, paths, VersionInfo } from '@forkd/api';
import '@fastify/swagger';
import Type from 'typebox';
import { callerSignal, type Server } from '../http.js';
import type { Services } from '../services.js';

const HostQuery = closed({ prove: Type.Optional(Type.String({ pattern: '^(true|false)$' })) });

export function daemonRoutes(server: Server, services: Services): void {
  server.get(
    paths.health(),
    { schema: { tags: ['daemon'], summary: 'Whether the daemon answers.', response: { 200: Health } } },
    async () => ({ ok: true as const }),
  );
  server.get(
    paths.version(),
    { schema: { tags: ['daemon'], summary: 'Versions.', response: { 200: VersionInfo } } },
    async () => ({ version: services.version, api: 'v1' as const }),
  );
  server.get(
    paths.daemon(),
    { schema: { tags: ['daemon'], summary: 'The daemon.', response: { 200: DaemonInfo } } },
    async () => services.describe(),
  );
  server.get(
    paths.host(),
    {
      schema: {
        tags: ['daemon'],
        summary: 'Prerequisites of the host, checked now.',
        description:
          '`checks`: name, state, found, remedy of each. `choice`: engine and accelerator of a build now; null when none can run.',
        querystring: HostQuery,
        response: { 200: HostFacts },
      },
    },
    async (request, reply) => {
      const signal = callerSignal(reply);
      const prove = request.query.prove === 'true';
      const checks = await services.engine.checkHost({ prove, signal });
      const choice = await services.engine.choice(signal).catch(() => null);
      return { checks, choice };
    },
  );
  server.get(
    paths.metrics(),
    { schema: { tags: ['daemon'], summary: 'Numbers for Prometheus.', produces: ['text/plain'] } },
    async (_request, reply) => {
      const { type, body } = await services.metrics.text();
      return reply.type(type).send(body);
    },
  );
}
