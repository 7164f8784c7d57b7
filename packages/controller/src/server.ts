/** The REST API as a fastify server: what surrounds all routes. */
import { createServer, type Server as HttpServer } from 'node:http';
import type { Socket } from 'node:net';
import websocket from '@fastify/websocket';
import { paths, quoteValue } from '@forkd/api';
import { type FastifyError, fastify } from 'fastify';
import type { TSchema } from 'typebox';
import { createAuth } from './auth.js';
import { ApiError, toApiError } from './errors.js';
import type { Server } from './http.js';
import { registerOpenapi } from './openapi.js';
import { branchRoutes } from './routes/branches.js';
import { daemonRoutes } from './routes/daemon.js';
import { execRoutes } from './routes/exec.js';
import { fileRoutes } from './routes/files.js';
import { sandboxRoutes } from './routes/sandboxes.js';
import { snapshotRoutes } from './routes/snapshots.js';
import { templateRoutes } from './routes/templates.js';
import type { Services } from './services.js';
import { checkOf } from './validate.js';

/** Largest JSON body, in bytes: a collected exec may carry stdin. Content of files is not JSON and has no limit here. */
const bodyLimit = 16 * 1024 * 1024;

/** Seconds after which something that was busy may be tried again. */
const retrySecs = 1;

export interface BuiltServer {
  /** Listens on the unix socket: whoever connects is trusted. */
  app: Server;
  /** Server for TCP: the same routes, behind the token. */
  remote: HttpServer;
  /** Ends both, whatever their connections do. */
  close(): Promise<void>;
}

/** Time that connections have to end well, in milliseconds. */
const closeMs = 1_000;

export interface ServerOptions {
  token: string | null;
  /** Host name that TCP is bound to. */
  boundHost: () => string | null;
}

/** Builds the server with all routes; it does not listen yet. */
export async function buildServer(services: Services, options: ServerOptions): Promise<BuiltServer> {
  const servers: { local?: HttpServer; remote?: HttpServer } = {};
  const local = new WeakSet<Socket>();
  // Node's own list of connections lacks those that were upgraded.
  const sockets = new Set<Socket>();
  const track = (socket: Socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  };
  const app = fastify({
    bodyLimit,
    routerOptions: { maxParamLength: 1024, ignoreTrailingSlash: true },
    keepAliveTimeout: 72_000,
    forceCloseConnections: true,
    serverFactory: (handler) => {
      // One set of routes, two doors: a connection is trusted only when it came through the first.
      servers.local = createServer(handler).on('connection', (socket) => local.add(socket));
      servers.local.on('connection', track);
      servers.remote = createServer(handler).on('connection', track);
      servers.remote.keepAliveTimeout = 72_000;
      servers.remote.on('upgrade', (...event) => servers.local?.emit('upgrade', ...event));
      return servers.local;
    },
    frameworkErrors: (error, _request, reply) => {
      const { status, body } = answerOf(error);
      reply.code(status as never).send(body as never);
    },
  }) as unknown as Server;
  app.setValidatorCompiler(({ schema, httpPart }) => {
    const check = checkOf(schema as TSchema, httpPart ?? 'request');
    return (value: unknown) => {
      const error = check(value);
      return error === null ? { value } : { error };
    };
  });
  // Answers are typed where they are made; a serializer by schema would drop what it does not know.
  app.setSerializerCompiler(() => (value) => JSON.stringify(value));
  acceptEmptyJson(app);
  guard(app, services, createAuth({ ...options, isLocal: (socket) => local.has(socket) }));
  await registerOpenapi(app, services.version);
  // The opening message carries a command, as a body does elsewhere; later frames are bounded by credit.
  await app.register(websocket, { options: { maxPayload: bodyLimit, perMessageDeflate: false } });
  await app.register(async (scope) => {
    const server = scope as Server;
    daemonRoutes(server, services);
    templateRoutes(server, services);
    snapshotRoutes(server, services);
    sandboxRoutes(server, services);
    branchRoutes(server, services);
    execRoutes(server, services);
    fileRoutes(server, services);
    server.get(paths.openapi(), { schema: { hide: true } }, async () => app.swagger());
  });
  await app.ready();
  const remote = servers.remote as HttpServer;
  const close = async () => {
    const force = setTimeout(() => {
      for (const socket of sockets) socket.destroy();
    }, closeMs);
    const closed = remote.listening ? new Promise((resolve) => remote.close(resolve)) : null;
    remote.closeAllConnections();
    await Promise.all([closed, app.close()]);
    clearTimeout(force);
  };
  return { app, remote, close };
}

/** Clients that send "content-type: application/json" with every request do so with no body as well. */
function acceptEmptyJson(app: Server): void {
  app.removeContentTypeParser('application/json');
  const parse = app.getDefaultJsonParser('error', 'error');
  app.addContentTypeParser('application/json', { parseAs: 'string' }, (request, body, done) => {
    if (body === '') done(null, undefined);
    else parse(request, body as string, done);
  });
}

function guard(app: Server, services: Services, authorize: ReturnType<typeof createAuth>): void {
  app.addHook('onRequest', async (request, reply) => {
    const upgrade = request.headers.upgrade !== undefined;
    if (upgrade) {
      // An upgrade that is refused leaves a socket that nobody reads: it would stay for ever.
      reply.raw.once('finish', () => request.raw.socket.destroySoon());
    }
    authorize(request.raw);
    if (services.closing()) throw new ApiError('shutting_down');
    // A websocket says itself when it begins and ends. Of others, this event comes also when the caller has gone away.
    if (!upgrade) reply.raw.once('close', services.enter());
  });
  app.addHook('onResponse', async (request, reply) => {
    const route = request.routeOptions.url ?? 'none';
    services.metrics.answered(request.method, route, reply.statusCode, reply.elapsedTime / 1000);
  });
  app.setErrorHandler((error: FastifyError, request, reply) => {
    const { id } = (request.params ?? {}) as { id?: string };
    const { status, body } = services.sandboxes.explain(id, answerOf(error));
    if (status >= 500) {
      const route = request.routeOptions.url ?? request.url;
      services.log.error({ err: error, method: request.method, route, code: body.code }, 'a request failed');
    }
    if (status === 503) reply.header('retry-after', retrySecs);
    reply
      .code(status)
      .type('application/json')
      .send(body as never);
  });
  app.setNotFoundHandler((request) => {
    const path = quoteValue(request.url.split('?', 1)[0]).slice(1, -1);
    throw new ApiError('route_not_found', { method: request.method, path });
  });
}

/** Status and body of an error answer. */
function answerOf(error: Error): ApiError {
  return ofFramework(error) ?? toApiError(error);
}

/** What fastify refuses by itself. */
function ofFramework(error: Error): ApiError | null {
  if (error instanceof ApiError) return null;
  const { code = '', statusCode, message } = error as Partial<FastifyError> & { message: string };
  switch (code) {
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return new ApiError('payload_too_large', { limit: bodyLimit });
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return new ApiError('unsupported_media_type', {
        value: message.replace(/^Unsupported Media Type:? ?/, ''),
      });
    case 'FST_ERR_CTP_INVALID_JSON_BODY':
    case 'FST_ERR_CTP_INVALID_CONTENT_LENGTH':
      return new ApiError('invalid_json', { problem: message });
    default:
  }
  if (error instanceof SyntaxError && statusCode === 400)
    return new ApiError('invalid_json', { problem: message });
  if (code.startsWith('FST_') && statusCode !== undefined && statusCode < 500) {
    return new ApiError('invalid_argument', { field: 'request', problem: message });
  }
  return null;
}
