/** Template files that the daemon knows: the user's, in the state directory, before those that ship. */
import { readdir, readFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import {
  isTag,
  quoteValue,
  type TemplateCost,
  type TemplateDetail,
  type TemplateInfo,
  type TemplateSource,
} from '@forkd/api';
import { type Engine, messageOf } from '@forkd/engine';
import { ApiError } from './errors.js';
import type { Snapshots } from './snapshots.js';

/** A template as a build takes it. */
export interface TemplateText {
  name: string;
  yaml: string;
  /** Where relative paths of the file start. */
  dir?: string;
}

export interface TemplatesOptions {
  engine: Engine;
  snapshots: Snapshots;
  /** Directories of template files; a name in an earlier one hides the same name in a later one. */
  directories: readonly string[];
  /** Whether a template is being built. */
  building: (name: string) => boolean;
}

/** Size that a template file may have, in bytes. */
const maxBytes = 1_048_576;

export class Templates {
  readonly #options: TemplatesOptions;

  constructor(options: TemplatesOptions) {
    this.#options = options;
  }

  async list(): Promise<TemplateInfo[]> {
    const files = await this.#files();
    const names = [...files.keys()].sort();
    return Promise.all(names.map((name) => this.#info(name, files.get(name) as string)));
  }

  async detail(name: string): Promise<TemplateDetail> {
    const path = (await this.#files()).get(name);
    if (path === undefined) throw notFound(name);
    const info = await this.#info(name, path);
    const yaml = await readTemplate(path);
    const logs = await this.#logs(name);
    const cost = await this.#cost(info.snapshot_id);
    const detail = { ...info, ...(cost && { cost }), yaml, logs };
    if (info.problem !== undefined) return detail;
    return { ...detail, spec: await this.#options.engine.parseTemplate(yaml, name) };
  }

  async #cost(id: string | undefined): Promise<TemplateCost | undefined> {
    if (id === undefined) return undefined;
    const { snapshots } = this.#options;
    const [all, it, now] = await Promise.all([
      snapshots.manifests(),
      snapshots.manifest(id),
      snapshots.detail(id),
    ]);
    const { memory_physical_bytes, disk_physical_bytes, vmstate_bytes, sandboxes } = now;
    return {
      build_ms: it.build.ms,
      steps: it.build.steps ?? [],
      memory_logical_bytes: it.memoryBytes,
      memory_physical_bytes,
      disk_logical_bytes: it.diskBytes,
      disk_physical_bytes,
      vmstate_bytes,
      own_bytes: memory_physical_bytes + disk_physical_bytes + vmstate_bytes,
      image_bytes: it.image.bytes,
      image_users: all.filter((other) => other.image.name === it.image.name).length,
      sandboxes,
      packages: it.build.packages ?? { pip: [], npm: [] },
    };
  }

  /** The text that a request means. An inline one is called by the `name` in it, else by that of the request, else by its tag. */
  async source(source: TemplateSource, tag: string | undefined): Promise<TemplateText> {
    if (typeof source === 'string') {
      const path = (await this.#files()).get(source);
      if (path === undefined) throw notFound(source);
      return { name: source, yaml: await readTemplate(path), dir: dirname(path) };
    }
    const spec = await this.#options.engine.parseTemplate(
      source.yaml,
      source.name ?? tag ?? '(without a name)',
    );
    const written = (spec as { name?: unknown } | null)?.name;
    const name = [written, source.name, tag].find((one) => typeof one === 'string' && isTag(one)) as
      | string
      | undefined;
    if (name === undefined) {
      throw new ApiError('invalid_argument', {
        field: 'tag',
        problem: `it is missing, and neither a "name" in the template nor that of its file ${source.name === undefined ? '' : `(${quoteValue(source.name)}) `}could be its tag`,
      });
    }
    return { name, yaml: source.yaml, ...(source.dir !== undefined && { dir: source.dir }) };
  }

  /** Paths of template files by name. Files whose name could not be a tag are none. */
  async #files(): Promise<Map<string, string>> {
    const files = new Map<string, string>();
    for (const directory of this.#options.directories) {
      for (const file of await entriesOf(directory)) {
        const name = basename(basename(file, '.yaml'), '.yml');
        if (name === file || !isTag(name) || files.has(name)) continue;
        files.set(name, join(directory, file));
      }
    }
    return files;
  }

  async #info(name: string, path: string): Promise<TemplateInfo> {
    const { engine, snapshots, building } = this.#options;
    const id = snapshots.tagTarget(name);
    const manifest = id === undefined ? null : await snapshots.manifest(id).catch(() => null);
    let description: unknown;
    let problem: string | undefined;
    try {
      const spec = await engine.parseTemplate(await readTemplate(path), name);
      description = (spec as { description?: unknown } | null)?.description;
    } catch (error) {
      problem = messageOf(error);
    }
    return {
      name,
      ...(typeof description === 'string' && { description }),
      path,
      built: manifest !== null,
      ...(manifest !== null && {
        snapshot_id: manifest.id,
        built_at_unix: Math.floor(manifest.createdAt / 1000),
      }),
      building: building(name),
      ...(problem !== undefined && { problem }),
    };
  }

  /** Logs of builds; names begin with the time, so that their order is that of the builds. */
  async #logs(name: string): Promise<string[]> {
    const directory = join(this.#options.engine.home, 'builds', name);
    const files = (await entriesOf(directory)).filter((file) => file.endsWith('.log'));
    return files
      .sort()
      .reverse()
      .map((file) => join(directory, file));
  }
}

async function entriesOf(directory: string): Promise<string[]> {
  try {
    return await readdir(directory);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return [];
    throw error;
  }
}

async function readTemplate(path: string): Promise<string> {
  const text = await readFile(path, 'utf8');
  if (text.length > maxBytes) {
    throw new ApiError('template_invalid', { value: path, problem: `it is larger than ${maxBytes} bytes` });
  }
  return text;
}

function notFound(name: string): ApiError {
  return new ApiError('template_not_found', { value: quoteValue(name) });
}
