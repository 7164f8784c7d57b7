/** Commands and code in a sandbox. */
import { EvalRequest, EvalResponse, ExecRequest, ExecResponse } from '@forkd/api';
import Type from 'typebox';
import { toApiError } from '../errors.js';
import { evaluate } from '../eval.js';
import { execCollected } from '../exec.js';
import { serveExecSocket } from '../exec-socket.js';
import { callerSignal, LineStream, type Server } from '../http.js';
import type { Services } from '../services.js';

const Params = Type.Object({ id: Type.String() });
const tags = ['exec'];

export function execRoutes(server: Server, services: Services): void {
  const { sandboxes } = services;
  server.post(
    '/v1/sandboxes/:id/exec',
    {
      schema: {
        tags,
        summary: 'Runs a command and collects its output.',
        params: Params,
        body: ExecRequest,
        response: { 200: ExecResponse },
      },
    },
    async (request, reply) => {
      const machine = await sandboxes.machine(request.params.id);
      return execCollected(machine, request.body, callerSignal(reply));
    },
  );
  server.post(
    '/v1/sandboxes/:id/eval',
    {
      schema: {
        tags,
        summary: 'Evaluates code in a warm interpreter.',
        description: 'With `stream`, answers ndjson: output as it comes, then result or failed.',
        params: Params,
        body: EvalRequest,
        response: { 200: EvalResponse },
      },
    },
    async (request, reply) => {
      const { id } = request.params;
      const signal = callerSignal(reply);
      if (request.body.stream !== true) return evaluate(sandboxes, id, request.body, signal);
      const lines = new LineStream();
      const result = evaluate(sandboxes, id, request.body, signal, (stream, text) =>
        lines.send({ type: 'output', stream, text }),
      );
      // What is refused at once is an error answer; once code runs, silence is no reason to wait with the headers.
      const refused = await Promise.race([lines.first.then(() => null), failureOf(result)]);
      if (refused !== null) {
        lines.destroy();
        throw refused;
      }
      result.then(
        (response) => lines.finish({ type: 'result', result: response }),
        (error: unknown) => lines.finish({ type: 'failed', error: toApiError(error, { sandbox: id }).body }),
      );
      return reply.type('application/x-ndjson').send(lines as never);
    },
  );
  server.get(
    '/v1/sandboxes/:id/exec/stream',
    {
      websocket: true,
      schema: { tags, summary: 'Websocket: a command with live streams; see docs.', params: Params },
    },
    (socket, request) => {
      serveExecSocket(socket, (request.params as { id: string }).id, services);
    },
  );
}

/** Resolves with the error of a promise that fails soon; with null when it succeeds, or is still on its way. */
function failureOf(result: Promise<unknown>): Promise<Error | null> {
  const soon = new Promise<null>((resolve) => setTimeout(() => resolve(null), 50).unref());
  return Promise.race([
    soon,
    result.then(
      () => null,
      (error: Error) => error,
    ),
  ]);
}
