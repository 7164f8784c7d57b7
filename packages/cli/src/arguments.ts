/** Arguments of commands: checked here only for what the daemon cannot tell apart later. */
import { readFileSync } from 'node:fs';
import { basename, dirname, resolve } from 'node:path';
import type { TemplateSource } from '@forkd/api';
import { CliError } from './failure.js';

/** Collects repeated `--env NAME=VALUE`; a bare NAME takes the value from our own environment. */
export function collectEnv(value: string, before: Record<string, string> = {}): Record<string, string> {
  const at = value.indexOf('=');
  const name = at < 0 ? value : value.slice(0, at);
  if (name === '') {
    throw new CliError('invalid', `--env ${JSON.stringify(value)} has no name`, 'write --env NAME=VALUE');
  }
  const content = at < 0 ? process.env[name] : value.slice(at + 1);
  if (content === undefined) {
    throw new CliError(
      'invalid',
      `--env ${name}: there is no such variable here`,
      `write --env ${name}=VALUE`,
    );
  }
  return { ...before, [name]: content };
}

/** Collects repeated `--meta NAME=VALUE`. */
export function collectPairs(value: string, before: Record<string, string> = {}): Record<string, string> {
  const at = value.indexOf('=');
  if (at < 1) {
    throw new CliError(
      'invalid',
      `--meta ${JSON.stringify(value)} is not NAME=VALUE`,
      'write --meta NAME=VALUE',
    );
  }
  return { ...before, [value.slice(0, at)]: value.slice(at + 1) };
}

/**
 * Makes a parser of whole numbers for an option.
 *
 * @example wholeNumber('-n', 1, 1000)('3') // 3
 */
export function wholeNumber(option: string, min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!/^-?\d{1,15}$/.test(text) || value < min || value > max) {
      throw new CliError(
        'invalid',
        `${option} ${JSON.stringify(text)} is not a whole number from ${min} to ${max}`,
      );
    }
    return value;
  };
}

/** Parses seconds: a number, fractions allowed, with an optional unit `ms`, `s`, `m` or `h`. */
export function seconds(option: string): (text: string) => number {
  const units: Readonly<Record<string, number>> = { ms: 0.001, s: 1, m: 60, h: 3600 };
  return (text) => {
    const match = /^(\d+(?:\.\d+)?)(ms|s|m|h)?$/.exec(text);
    const value = Number(match?.[1]) * (units[match?.[2] ?? 's'] ?? 1);
    if (match === null || value <= 0 || value > 2_000_000) {
      throw new CliError(
        'invalid',
        `${option} ${JSON.stringify(text)} is not a time such as 10, 1.5s, 500ms or 2m, and at most 2000000 s`,
      );
    }
    return value;
  };
}

/** What a template is called that is named by its name or its file. */
export function nameOf(template: string): string {
  return basename(template).replace(/\.ya?ml$/, '');
}

/** A template as it was named: a name that the daemon knows, or a file, which is read here. */
export function templateSource(nameOrFile: string): TemplateSource {
  const isFile = nameOrFile.includes('/') || /\.ya?ml$/.test(nameOrFile);
  if (!isFile) return nameOrFile;
  const path = resolve(nameOrFile);
  try {
    return { yaml: readFileSync(path, 'utf8'), dir: dirname(path), name: nameOf(path) };
  } catch (error) {
    throw new CliError(
      'not_found',
      `cannot read the template file ${path}: ${(error as Error).message}`,
      'give the name of a template ("forkd template ls"), or the path of a file',
      error,
    );
  }
}
