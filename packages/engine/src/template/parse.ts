/** Reads a template file: every mistake is told with its field, its value and its line. */
import Value from 'typebox/value';
import { type Document, isMap, isNode, LineCounter, type Node, parseDocument } from 'yaml';
import { EngineError } from '../errors.js';
import { type CommandSpec, formHints, TemplateFile, type TemplateSpec } from './schema.js';
import { parseDuration, parseSize } from './units.js';

const MiB = 1024 * 1024;
const limits = {
  /** With less, Debian's kernel runs out of memory while it boots: it was tried at 64, 72 and 80 MiB. */
  memory: [96 * MiB, 1024 * 1024 * MiB],
  disk: [64 * MiB, 16 * 1024 * 1024 * MiB],
} as const;
const SETUP_TIMEOUT_MS = 20 * 60_000;
const WARM_UP_TIMEOUT_MS = 5 * 60_000;
const READY_TIMEOUT_MS = 60_000;

/** Interpreters known by name. Their drivers are in the initramfs; node has to be started by a shell that moves its descriptors. */
const knownInterpreters: Readonly<Record<string, string[]>> = {
  python: ['python3', '/run/forkd/interpreters/python.py'],
  node: ['sh', '/run/forkd/interpreters/node.sh'],
};

/**
 * Parses and checks a template.
 *
 * @param yaml text of the file
 * @param name the template's name, for messages and where the file gives none
 * @throws EngineError `template_invalid` with `details.problems`, each {field, line, message}
 */
export function parseTemplate(yaml: string, name: string): TemplateSpec {
  const reader = new Reader(yaml, name);
  const file = reader.check();
  const spec = expand(file, name, reader);
  reader.end();
  return spec;
}

interface Problem {
  /** Path in the file, such as `setup[1].run`; empty for the whole. */
  field: string;
  line: number | null;
  message: string;
}

class Reader {
  readonly #name: string;
  readonly #lines = new LineCounter();
  readonly #document: Document.Parsed;
  readonly #problems: Problem[] = [];

  constructor(yaml: string, name: string) {
    this.#name = name;
    this.#document = parseDocument(yaml, { lineCounter: this.#lines, uniqueKeys: true, version: '1.2' });
    for (const error of this.#document.errors) {
      const line = this.#lines.linePos(error.pos[0]).line;
      this.#problems.push({
        field: '',
        line,
        message: error.message.split('\n')[0]!.replace(/ at line.*$/, ''),
      });
    }
    this.end();
  }

  /** The file's content with shorthands expanded, checked against the schema. */
  check(): TemplateFile {
    let data: unknown;
    try {
      data = expandShorthands(this.#document.toJS({ maxAliasCount: 100 }));
    } catch (error) {
      this.add([], error instanceof Error ? error.message : String(error));
      this.end();
    }
    if (typeof data !== 'object' || data === null || Array.isArray(data)) {
      this.add([], 'a template is a list of fields, such as "base: debian:bookworm"');
      this.end();
    }
    for (const error of Value.Errors(TemplateFile, data)) {
      const path = error.instancePath
        .split('/')
        .slice(1)
        .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
      const value = valueAt(data, path);
      switch (error.keyword) {
        case 'additionalProperties':
          for (const field of error.params.additionalProperties)
            this.add([...path, field], `unknown field ${quote(field)}`);
          break;
        case 'required':
          for (const field of error.params.requiredProperties) this.add(path, `field "${field}" is missing`);
          break;
        case 'boolean':
          break;
        default: {
          const field = path.findLast((part) => !/^\d+$/.test(part)) ?? '';
          const formal = error.keyword === 'pattern' || error.schemaPath.includes('/anyOf');
          const hint = formal ? formHints[field] : undefined;
          this.add(path, `${quote(value)} ${hint ? `must be ${hint}` : error.message}`);
        }
      }
    }
    this.end();
    return data as TemplateFile;
  }

  /** Notes a problem of a field. One a field: the first says enough. */
  add(path: readonly (string | number)[], message: string): void {
    const field = path.reduce<string>(
      (text, part) =>
        /^\d+$/.test(String(part)) ? `${text}[${part}]` : text === '' ? String(part) : `${text}.${part}`,
      '',
    );
    if (this.#problems.some((problem) => problem.field === field && field !== '')) return;
    this.#problems.push({ field, line: this.#lineOf(path), message });
  }

  /** Throws when there are problems. */
  end(): void {
    if (this.#problems.length === 0) return;
    const text = this.#problems.map(({ field, line, message }) => {
      const where = [field, line === null ? '' : `line ${line}`].filter(Boolean).join(', ');
      return where === '' ? message : `${where}: ${message}`;
    });
    throw new EngineError('template_invalid', `template ${this.#name} is not valid: ${text.join('; ')}`, {
      remedy: 'Correct the template file; docs/templates.md has every field.',
      details: { problems: this.#problems },
    });
  }

  /** The line of a field, or of the nearest that holds it. */
  #lineOf(path: readonly (string | number)[]): number | null {
    let node: unknown = this.#document.contents;
    let position = isNode(node) ? node.range?.[0] : undefined;
    for (const part of path) {
      if (isMap(node)) {
        const pair = node.items.find(
          (item) => String((item.key as Node & { value?: unknown })?.value) === String(part),
        );
        if (!pair) break;
        position = (pair.key as Node).range?.[0] ?? position;
        node = pair.value;
      } else {
        const item = (node as { items?: unknown[] } | null)?.items?.[Number(part)];
        if (!isNode(item)) break;
        position = item.range?.[0] ?? position;
        node = item;
      }
    }
    return position === undefined || position === null ? null : this.#lines.linePos(position).line;
  }
}

/** `- cmd` for `- run: cmd`, `- python` for `- name: python`, `PORT: 80` for `PORT: "80"`. Others are left for the schema. */
function expandShorthands(data: unknown): unknown {
  if (typeof data !== 'object' || data === null || Array.isArray(data)) return data;
  const file: Record<string, unknown> = { ...data };
  // A field without a value, as when all its lines are commented out, is as good as absent.
  for (const key of Object.keys(file)) if (file[key] === null) delete file[key];
  const each = (key: string, field: string) => {
    const list = file[key];
    if (Array.isArray(list))
      file[key] = list.map((item) => (typeof item === 'string' ? { [field]: item } : item));
  };
  each('setup', 'run');
  each('warm_up', 'run');
  each('interpreters', 'name');
  each('prime', 'code');
  if (typeof file.ready === 'string') file.ready = { run: file.ready };
  const { env } = file;
  if (typeof env === 'object' && env !== null && !Array.isArray(env))
    file.env = Object.fromEntries(
      Object.entries(env).map(([name, value]) => [
        name,
        typeof value === 'number' || typeof value === 'boolean' ? String(value) : value,
      ]),
    );
  return file;
}

/** Defaults, units, and what holds between fields. */
function expand(file: TemplateFile, name: string, reader: Reader): TemplateSpec {
  const user = file.user ?? 'root';
  const command = (
    value: { run: string; timeout?: number | string; user?: string },
    path: (string | number)[],
    defaults: { timeoutMs: number; user: string },
  ): CommandSpec => {
    if (value.run.includes('\0')) reader.add(path, 'holds a NUL character');
    const timeoutMs = value.timeout === undefined ? defaults.timeoutMs : parseDuration(value.timeout);
    return { run: value.run, timeoutMs, user: value.user ?? defaults.user };
  };
  const interpreters = (file.interpreters ?? []).map((item, index) => {
    const known = Object.hasOwn(knownInterpreters, item.name) ? knownInterpreters[item.name] : undefined;
    const path = ['interpreters', index];
    if (!item.command && !known)
      reader.add(
        path,
        `${quote(item.name)} is not known: give its "command" (known: ${Object.keys(knownInterpreters).join(', ')})`,
      );
    if (file.interpreters!.findIndex(({ name: other }) => other === item.name) !== index)
      reader.add(path, `there are two interpreters named ${quote(item.name)}`);
    return {
      name: item.name,
      command: item.command ? { shell: item.command } : (known ?? []),
      init: item.init ?? '',
    };
  });
  const prime = (file.prime ?? []).map((item, index) => {
    const interpreter = item.interpreter ?? interpreters[0]?.name ?? '';
    if (!interpreters.some((known) => known.name === interpreter))
      reader.add(
        ['prime', index],
        interpreter === ''
          ? 'needs an interpreter in "interpreters"'
          : `no interpreter ${quote(interpreter)} in "interpreters"`,
      );
    return { interpreter, code: item.code };
  });
  for (const [key, value] of Object.entries(file.env ?? {})) {
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(key))
      reader.add(['env', key], `${quote(key)} cannot be the name of a variable`);
    if (value.includes('\0')) reader.add(['env', key], 'its value holds a NUL character');
  }
  const base = baseOf(file, reader);
  const files = (file.files ?? []).map((item, index): TemplateSpec['files'][number] => {
    const path = ['files', index];
    if ((item.from === undefined) === (item.content === undefined))
      reader.add(path, `${quote(item.path)} needs one of "from" and "content"`);
    if (item.path.endsWith('/') || item.path.split('/').includes('..'))
      reader.add([...path, 'path'], `${quote(item.path)} must name a file, without ".."`);
    const mode = Number.parseInt(item.mode ?? '0644', 8);
    return item.from === undefined
      ? { path: item.path, mode, content: item.content ?? '' }
      : { path: item.path, mode, from: item.from };
  });
  return {
    name: file.name ?? name,
    description: file.description ?? '',
    ...base,
    files,
    setup: (file.setup ?? []).map((item, index) =>
      command(item, ['setup', index], { timeoutMs: SETUP_TIMEOUT_MS, user: 'root' }),
    ),
    env: file.env ?? {},
    user,
    warmUp: (file.warm_up ?? []).map((item, index) => ({
      ...command(item, ['warm_up', index], { timeoutMs: WARM_UP_TIMEOUT_MS, user }),
      background: item.background ?? false,
    })),
    interpreters,
    ready: file.ready ? command(file.ready, ['ready'], { timeoutMs: READY_TIMEOUT_MS, user }) : null,
    prime,
    memoryBytes: size(file.memory ?? '512M', 'memory', reader),
    vcpus: file.vcpus ?? 1,
    diskBytes: size(file.disk ?? '2G', 'disk', reader),
  };
}

/** What the image is made of. */
function baseOf(
  file: TemplateFile,
  reader: Reader,
): Pick<TemplateSpec, 'base' | 'rootfs' | 'packages' | 'pip' | 'npm'> {
  const sorted = (list: readonly string[] = []) => [...new Set(list)].sort();
  const { base = 'rootfs', rootfs = null } = file;
  if (file.base === undefined && rootfs === null)
    reader.add([], 'field "base" is missing ("rootfs" can take its place)');
  if (file.base !== undefined && rootfs !== null)
    reader.add(['rootfs'], 'takes the place of "base": only one of both can be given');
  const refused = base === 'busybox' ? 'base "busybox"' : base === 'rootfs' ? 'a "rootfs"' : null;
  if (refused && file.packages?.length)
    reader.add(['packages'], `${refused} takes no packages; use "debian:bookworm" as base`);
  for (const [field, language] of [
    ['pip', 'Python'],
    ['npm', 'Node.js'],
  ] as const)
    if (base === 'busybox' && file[field]?.length)
      reader.add([field], `base "busybox" has no ${language}; use "debian:bookworm" as base`);
  const needed = [...(file.pip?.length ? ['python3'] : []), ...(file.npm?.length ? ['nodejs'] : [])];
  return {
    base,
    rootfs,
    packages: sorted([...(file.packages ?? []), ...(base === 'rootfs' ? [] : needed)]),
    pip: sorted(file.pip),
    npm: sorted(file.npm),
  };
}

function size(text: string, field: 'memory' | 'disk', reader: Reader): number {
  const bytes = parseSize(text);
  const [least, most] = limits[field];
  if (bytes < least || bytes > most)
    reader.add([field], `${quote(text)} must be at least ${least / MiB}M and at most ${most / MiB / 1024}G`);
  else if (bytes % MiB !== 0) reader.add([field], `${quote(text)} must be whole MiB`);
  return bytes;
}

function valueAt(data: unknown, path: readonly string[]): unknown {
  let value = data;
  for (const part of path) value = (value as Record<string, unknown> | undefined)?.[part];
  return value;
}

function quote(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 120 ? `${text.slice(0, 120)}...` : text;
}
