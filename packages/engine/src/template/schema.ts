/**
 * A template file, as YAML says it. Shorthands are expanded before it is checked: a command may be written as its text alone, an
 * interpreter as its name alone, environment values as numbers.
 */
import Type, { type Static } from 'typebox';

const closed = { additionalProperties: false };
const NAME = '^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$';
const GUEST_PATH = '^/[^\\0]{1,4095}$';
/** A name with extras, versions and a marker; no option, path or URL: packages come from the indexes that pip is set up for. */
const PIP_REQUIREMENT =
  '^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? ?(\\[[A-Za-z0-9._, -]*\\])? ?([<>=!~][A-Za-z0-9.,<>=!~*+_ -]*)?(;[^\n\\0]*)?$';
/** A name with a version, range or tag; no option, path, alias or URL: packages come from the registry that npm is set up for. */
const NPM_PACKAGE =
  '^(@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*(@[A-Za-z0-9.<>=^~|*+ -]+)?$';
const SIZE = '^[0-9]+(\\.[0-9]+)? ?([KMGT]i?B?|B)$';

/** `90`, `"90s"`, `"5m"`, `"1h"`: at most a day. */
const Duration = Type.Union([
  Type.Number({ exclusiveMinimum: 0, maximum: 86_400 }),
  Type.String({ pattern: '^[0-9]+(\\.[0-9]+)?(ms|s|m|h)$' }),
]);

/** A shell command in the guest. */
const Command = Type.Object(
  {
    run: Type.String({ minLength: 1, maxLength: 131_072 }),
    timeout: Type.Optional(Duration),
    /** Default: root for `setup`, the template's user for the rest. */
    user: Type.Optional(Type.String({ minLength: 1, maxLength: 255 })),
  },
  closed,
);

const WarmUp = Type.Object(
  {
    ...Command.properties,
    /** A service: it is started and runs on in every sandbox. */
    background: Type.Optional(Type.Boolean()),
  },
  closed,
);

const GuestFile = Type.Object(
  {
    path: Type.String({ pattern: GUEST_PATH }),
    /** File on the host, relative to the template's directory. */
    from: Type.Optional(Type.String({ minLength: 1 })),
    content: Type.Optional(Type.String()),
    /** Permission bits, octal: `"0644"`. */
    mode: Type.Optional(Type.String({ pattern: '^0?[0-7]{3,4}$' })),
  },
  closed,
);

const TemplateInterpreter = Type.Object(
  {
    name: Type.String({ pattern: NAME }),
    /** Shell command that speaks the line protocol; python and node are known by name. */
    command: Type.Optional(Type.String({ minLength: 1, maxLength: 131_072 })),
    /** Evaluated once it is ready: imports, what must be warm. */
    init: Type.Optional(Type.String()),
  },
  closed,
);

const Prime = Type.Object(
  {
    /** Default: the first. */
    interpreter: Type.Optional(Type.String({ pattern: NAME })),
    code: Type.String({ minLength: 1 }),
  },
  closed,
);

export const TemplateFile = Type.Object(
  {
    name: Type.Optional(Type.String({ pattern: NAME })),
    description: Type.Optional(Type.String({ maxLength: 1000 })),
    base: Type.Optional(Type.String({ pattern: '^(busybox|debian:[a-z][a-z0-9-]*)$' })),
    /** Directory or tar on the host, relative to the template's directory; in place of a base. */
    rootfs: Type.Optional(Type.String({ minLength: 1, maxLength: 4096 })),
    packages: Type.Optional(
      Type.Array(Type.String({ pattern: '^[a-z0-9][a-z0-9+.-]+$' }), { maxItems: 1000 }),
    ),
    pip: Type.Optional(Type.Array(Type.String({ pattern: PIP_REQUIREMENT }), { maxItems: 1000 })),
    npm: Type.Optional(Type.Array(Type.String({ pattern: NPM_PACKAGE }), { maxItems: 1000 })),
    files: Type.Optional(Type.Array(GuestFile, { maxItems: 1000 })),
    setup: Type.Optional(Type.Array(Command, { maxItems: 200 })),
    env: Type.Optional(Type.Record(Type.String(), Type.String({ maxLength: 131_072 }))),
    user: Type.Optional(Type.String({ minLength: 1, maxLength: 255 })),
    warm_up: Type.Optional(Type.Array(WarmUp, { maxItems: 200 })),
    interpreters: Type.Optional(Type.Array(TemplateInterpreter, { maxItems: 16 })),
    ready: Type.Optional(Command),
    prime: Type.Optional(Type.Array(Prime, { maxItems: 100 })),
    memory: Type.Optional(Type.String({ pattern: SIZE })),
    vcpus: Type.Optional(Type.Integer({ minimum: 1, maximum: 32 })),
    disk: Type.Optional(Type.String({ pattern: SIZE })),
  },
  closed,
);
export type TemplateFile = Static<typeof TemplateFile>;

/** What must be said where a value has not the form that it needs, by field. */
export const formHints: Readonly<Record<string, string>> = {
  name: 'letters, digits, "-" and "_", at most 64, the first a letter or digit',
  base: '"busybox", or "debian:" and a suite, such as "debian:bookworm"',
  packages: 'names of Debian packages',
  pip: 'a requirement of a package of an index, such as "attrs", "attrs>=23" or "attrs[tests]==23.2.0"',
  npm: 'a package of a registry, such as "ms", "ms@2" or "@types/node@^20"',
  path: 'an absolute path',
  mode: 'octal permission bits in quotes, such as "0644"',
  memory: 'a number with a unit, such as "512M" or "1G"',
  disk: 'a number with a unit, such as "512M" or "2G"',
  timeout: 'seconds, or a number with ms, s, m or h; at most a day',
  interpreter: 'the name of one of "interpreters"',
};

/** A shell command, with what was left out filled in. */
export interface CommandSpec {
  run: string;
  timeoutMs: number;
  user: string;
}

/** A template as the builder takes it: checked, defaults filled in, numbers in bytes and milliseconds. */
export interface TemplateSpec {
  name: string;
  description: string;
  /** `busybox`, `debian:SUITE`, or `rootfs`. */
  base: string;
  /** Directory or tar as the file names it; null unless `base` is `rootfs`. */
  rootfs: string | null;
  /** Sorted, each once: so too `pip` and `npm`. With those that `pip` and `npm` need of the base. */
  packages: string[];
  pip: string[];
  npm: string[];
  files: ({ path: string; mode: number } & ({ from: string } | { content: string }))[];
  setup: CommandSpec[];
  env: Record<string, string>;
  user: string;
  warmUp: (CommandSpec & { background: boolean })[];
  interpreters: { name: string; command: string[] | { shell: string }; init: string }[];
  /** Retried until it exits with 0, for at most `timeoutMs` in all. */
  ready: CommandSpec | null;
  prime: { interpreter: string; code: string }[];
  memoryBytes: number;
  vcpus: number;
  diskBytes: number;
}
