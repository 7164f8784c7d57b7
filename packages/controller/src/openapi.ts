/** The OpenAPI document, from the schemas that validate requests. */
import swagger from '@fastify/swagger';
import { ErrorBody } from '@forkd/api';
import type { Server } from './http.js';

type Json = Record<string, unknown>;

/** Collects the routes that are added from now on. */
export async function registerOpenapi(server: Server, version: string): Promise<void> {
  const components: Json = { ErrorBody: plain(ErrorBody) };
  await server.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: { title: 'forkd', version, description: 'microVM sandboxes that fork.' },
      components: { securitySchemes: { token: { type: 'http', scheme: 'bearer' } } },
      security: [{ token: [] }],
    },
    transform: ({ schema, url }) => {
      const { response, ...rest } = (schema ?? {}) as Json;
      const answers = { ...(response as Json | undefined), default: ErrorBody };
      return { schema: named({ ...rest, response: answers }, components) as typeof schema, url };
    },
    transformObject: (document) => {
      const whole = ('openapiObject' in document ? document.openapiObject : {}) as Json;
      return { ...whole, components: { ...(whole.components as Json), schemas: components as never } };
    },
  });
}

/** Replaces schemas that have a name by references to them. Parameters are taken apart by the generator: they stay. */
function named(schema: Json, components: Json): Json {
  const result: Json = { ...schema };
  if (schema.body !== undefined) result.body = refer(schema.body, components);
  const answers = Object.entries(schema.response as Json);
  result.response = Object.fromEntries(
    answers.map(([status, answer]) => [status, refer(answer, components)]),
  );
  return result;
}

function refer(schema: unknown, components: Json): unknown {
  if (Array.isArray(schema)) return schema.map((item) => refer(item, components));
  if (typeof schema !== 'object' || schema === null) return schema;
  const { $id, $ref } = schema as Json;
  if (typeof $ref === 'string' && !$ref.includes('/')) return { $ref: `#/components/schemas/${$ref}` };
  const inner = () =>
    Object.fromEntries(
      Object.entries(schema)
        .filter(([key]) => key !== '$id')
        .map(([key, value]) => [key, refer(value, components)]),
    );
  if (typeof $id !== 'string') return inner();
  components[$id] ??= inner();
  return { $ref: `#/components/schemas/${$id}` };
}

function plain(schema: object): Json {
  const { $id: _, ...rest } = schema as Json;
  return rest;
}
