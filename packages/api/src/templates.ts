/** Templates: recipes whose build makes a snapshot. */
import Type, { type Static } from 'typebox';
import { closed, Tag } from './common.js';
import { ErrorBody } from './errors.js';

/** What to build: the name of a template that the daemon knows, or the text of a template file. */
export const TemplateSource = Type.Union(
  [
    Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$', description: 'Name of a known template.' }),
    closed({
      yaml: Type.String({ maxLength: 1_048_576, description: 'Text of the template file.' }),
      dir: Type.Optional(
        Type.String({
          pattern: '^/',
          description: 'Directory on the host that relative paths of the file start from.',
        }),
      ),
    }),
  ],
  { $id: 'TemplateSource' },
);
export type TemplateSource = Static<typeof TemplateSource>;

export const BuildRequest = closed(
  {
    template: TemplateSource,
    tag: Type.Optional(Tag),
    no_cache: Type.Optional(Type.Boolean({ description: 'Build every stage anew.' })),
  },
  { $id: 'BuildRequest' },
);
export type BuildRequest = Static<typeof BuildRequest>;

export const stepStates = ['running', 'cached', 'done', 'failed'] as const;

/** A line of the ndjson stream that a build answers. The last one is `done` or `failed`. */
export const BuildEvent = Type.Union(
  [
    Type.Object({
      type: Type.Literal('step'),
      step: Type.String({ description: 'Name of the stage.' }),
      title: Type.String({ description: 'What it does, for people.' }),
      state: Type.Enum(stepStates),
      detail: Type.Optional(Type.String()),
      ms: Type.Optional(Type.Number({ description: 'How long it took.' })),
    }),
    Type.Object({ type: Type.Literal('log'), step: Type.String(), text: Type.String() }),
    Type.Object({
      type: Type.Literal('done'),
      tag: Type.String(),
      snapshot_id: Type.String(),
      cached: Type.Boolean({ description: 'Nothing had changed: the snapshot that exists was kept.' }),
      ms: Type.Number(),
    }),
    Type.Object({ type: Type.Literal('failed'), error: ErrorBody }),
  ],
  { $id: 'BuildEvent' },
);
export type BuildEvent = Static<typeof BuildEvent>;

export const TemplateInfo = Type.Object(
  {
    name: Type.String(),
    description: Type.Optional(Type.String()),
    path: Type.Optional(Type.String({ description: 'Template file on the host.' })),
    built: Type.Boolean({ description: 'Whether its tag points to a snapshot.' }),
    snapshot_id: Type.Optional(Type.String()),
    built_at_unix: Type.Optional(Type.Integer()),
    building: Type.Boolean(),
    problem: Type.Optional(Type.String({ description: 'Why the template file cannot be used.' })),
  },
  { $id: 'TemplateInfo' },
);
export type TemplateInfo = Static<typeof TemplateInfo>;

export const TemplateDetail = Type.Object(
  {
    ...TemplateInfo.properties,
    yaml: Type.Optional(Type.String()),
    spec: Type.Optional(Type.Unknown({ description: 'The template as understood, defaults filled in.' })),
    logs: Type.Array(Type.String(), { description: 'Build logs on the host, newest first.' }),
  },
  { $id: 'TemplateDetail' },
);
export type TemplateDetail = Static<typeof TemplateDetail>;
