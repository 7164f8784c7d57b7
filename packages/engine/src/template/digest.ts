/** What a snapshot of a template depends on, as one hash: the same digest means the same snapshot. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { isAbsolute, resolve } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { EngineError } from '../errors.js';
import type { TemplateSpec } from './schema.js';

/** Changes whenever a build of the same template would come out otherwise. */
const BUILD_FORMAT = 2;

export interface DigestInputs {
  spec: TemplateSpec;
  /** SHA-256 of the `files` that are taken from the host, by path in the guest. */
  files: Readonly<Record<string, string>>;
  kernel: string;
  initramfs: string;
  image: string;
  /** Of the engine. */
  pin: unknown;
}

/** Name and description do not count: they change nothing in the machine. */
export function templateDigest(inputs: DigestInputs): string {
  const { name: _name, description: _description, ...spec } = inputs.spec;
  return createHash('sha256')
    .update(canonicalJson({ ...inputs, spec, format: BUILD_FORMAT }))
    .digest('hex');
}

/** JSON with the keys of every object in order, so that equal values are equal texts. */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map((item) => canonicalJson(item ?? null)).join(',')}]`;
  if (typeof value === 'object' && value !== null) {
    const fields = Object.entries(value)
      .filter(([, item]) => item !== undefined)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, item]) => `${JSON.stringify(key)}:${canonicalJson(item)}`);
    return `{${fields.join(',')}}`;
  }
  return JSON.stringify(value) ?? 'null';
}

/** A file of the template that lies on the host. */
export interface HostFile {
  path: string;
  sha256: string;
}

/**
 * Finds and hashes the files that a template takes from the host.
 *
 * @param dir where relative names start; without it only absolute names can be resolved
 * @returns by path in the guest
 * @throws EngineError `template_invalid` for one that is not there, or not a regular file
 */
export async function findHostFiles(
  spec: TemplateSpec,
  dir: string | undefined,
  signal?: AbortSignal,
): Promise<Map<string, HostFile>> {
  const found = new Map<string, HostFile>();
  for (const [index, file] of spec.files.entries()) {
    if (!('from' in file)) continue;
    const field = `files[${index}].from`;
    const refuse = (problem: string, cause?: unknown) => refusal(spec, field, problem, cause);
    const path = hostPath(spec, file.from, dir, field);
    // A pipe or device would never end, or hang at its opening.
    const info = await stat(path).catch((cause: NodeJS.ErrnoException) => {
      throw refuse(`${path} cannot be read (${cause.code})`, cause);
    });
    if (!info.isFile()) throw refuse(`${path} is not a regular file`);
    const hash = createHash('sha256');
    await pipeline(createReadStream(path), hash, ...(signal ? [{ signal }] : [])).catch((cause: unknown) => {
      throw refuse(`${path} cannot be read (${(cause as NodeJS.ErrnoException).code})`, cause);
    });
    found.set(file.path, { path, sha256: hash.digest('hex') });
  }
  return found;
}

/**
 * Where a name in a template leads on the host.
 *
 * @throws EngineError `template_invalid` for a relative one in a template without a directory
 */
export function hostPath(spec: TemplateSpec, name: string, dir: string | undefined, field: string): string {
  if (dir === undefined && !isAbsolute(name))
    throw refusal(spec, field, `${JSON.stringify(name)} is relative, and the template has no directory`);
  return resolve(dir ?? '/', name);
}

function refusal(spec: TemplateSpec, field: string, problem: string, cause?: unknown): EngineError {
  return new EngineError('template_invalid', `template ${spec.name} is not valid: ${field}: ${problem}`, {
    remedy: 'Names start at the directory of the template file.',
    cause,
  });
}
