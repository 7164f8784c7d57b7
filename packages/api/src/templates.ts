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
      name: Type.Optional(
        Type.String({
          maxLength: 255,
          description: 'What it is called where the text does not say, such as the name of its file.',
        }),
      ),
    }),
  ],
  { $id: 'TemplateSource' },
);
export type TemplateSource = Static<typeof TemplateSource>;

/** What can run a machine. */
export const engineNames = ['qemu', 'firecracker'] as const;

export const BuildRequest = closed(
  {
    template: TemplateSource,
    tag: Type.Optional(Tag),
    no_cache: Type.Optional(Type.Boolean({ description: 'Build every stage anew.' })),
    engine: Type.Optional(
      Type.Enum(engineNames, { description: 'What runs it. Default: the best that works on this host.' }),
    ),
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

const LockedPackage = Type.Object({
  name: Type.String(),
  version: Type.String(),
  hash: Type.String({ description: 'Of the archive from the registry: sha256:HEX, or sha512-BASE64.' }),
});

/** What the snapshot that a template's tag points to has cost, and costs. */
export const TemplateCost = Type.Object(
  {
    build_ms: Type.Number({ description: 'From the beginning of its build to its end.' }),
    steps: Type.Array(
      Type.Object({
        step: Type.String({ description: 'Name of the stage, as in BuildEvent.' }),
        title: Type.String(),
        cached: Type.Boolean({ description: 'Nothing had to be done.' }),
        ms: Type.Number(),
      }),
      { description: 'In order; empty for snapshots of a forkd that did not note them.' },
    ),
    memory_logical_bytes: Type.Integer({ description: 'Memory that each machine has.' }),
    memory_physical_bytes: Type.Integer({
      description:
        'What of it was in use at the capture: allocated on disk, and shared by all children until they change it.',
    }),
    disk_logical_bytes: Type.Integer({ description: 'Size of the disk that each machine has.' }),
    disk_physical_bytes: Type.Integer({
      description: 'What of it was written by the build: allocated on disk.',
    }),
    vmstate_bytes: Type.Integer({ description: 'State of the devices.' }),
    own_bytes: Type.Integer({
      description: 'Allocated on disk for this snapshot alone: gone when it is removed.',
    }),
    image_bytes: Type.Integer({
      description: 'Size of the read-only image, on disk once however many use it.',
    }),
    image_users: Type.Integer({ description: 'Number of snapshots that use the image, this one too.' }),
    sandboxes: Type.Integer({ description: 'Number of live sandboxes that continue from it.' }),
    packages: Type.Object(
      { pip: Type.Array(LockedPackage), npm: Type.Array(LockedPackage) },
      { description: 'The lock: what "pip" and "npm" came out as.' },
    ),
  },
  { $id: 'TemplateCost' },
);
export type TemplateCost = Static<typeof TemplateCost>;

export const TemplateDetail = Type.Object(
  {
    ...TemplateInfo.properties,
    cost: Type.Optional(TemplateCost),
    yaml: Type.Optional(Type.String()),
    spec: Type.Optional(Type.Unknown({ description: 'The template as understood, defaults filled in.' })),
    logs: Type.Array(Type.String(), { description: 'Build logs on the host, newest first.' }),
  },
  { $id: 'TemplateDetail' },
);
export type TemplateDetail = Static<typeof TemplateDetail>;
