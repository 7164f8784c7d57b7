/** Checks what clients send against the schemas of the API. Strict: nothing is coerced, nothing is dropped. */
import { quoteValue, tagPattern } from '@forkd/api';
import type { Static, TSchema } from 'typebox';
import { Compile } from 'typebox/compile';
import { ApiError } from './errors.js';

/** Says why a value is refused; null when it is not. */
export type Check = (value: unknown) => ApiError | null;

/** As much as is read of the errors that typebox reports. */
interface Finding {
  keyword: string;
  schemaPath: string;
  instancePath: string;
  params: object;
  message: string;
}

/** Fields whose values are secrets, or whole programs: they do not belong into messages. */
const unquoted = new Set(['env', 'stdin', 'code', 'yaml', 'metadata']);

/**
 * Compiles a schema to a check. `where` says what is checked when it has no field name, such as `body`.
 */
export function checkOf(schema: TSchema, where: string): Check {
  const compiled = Compile(schema);
  return (value) => {
    if (compiled.Check(value)) return null;
    return describe(compiled.Errors(value) as Finding[], value, schema, where);
  };
}

/** Checks and types a value; throws the ApiError that says what is wrong. */
export function parserOf<S extends TSchema>(schema: S, where: string): (value: unknown) => Static<S> {
  const check = checkOf(schema, where);
  return (value) => {
    const error = check(value);
    if (error !== null) throw error;
    return value as Static<S>;
  };
}

function describe(findings: Finding[], value: unknown, schema: TSchema, where: string): ApiError {
  const unknown = findings.find((finding) => finding.keyword === 'additionalProperties' && !inUnion(finding));
  if (unknown !== undefined) {
    const names = (unknown.params as { additionalProperties: string[] }).additionalProperties;
    const path = [...segments(unknown.instancePath), names[0] ?? ''];
    if (isRecord(schema, path[0]))
      return invalid(path[0] ?? where, `the name ${quoteValue(names[0])} is not allowed`);
    return new ApiError('unknown_field', { value: quoteValue(path.join('.')), known: known(schema, path) });
  }
  const finding = findings.find((entry) => entry.keyword !== 'boolean') ?? findings[0];
  if (finding === undefined) return invalid(where, 'it is not valid');
  const path = segments(finding.instancePath);
  const actual = path.reduce<unknown>((at, key) => (at as Record<string, unknown> | undefined)?.[key], value);
  if (finding.keyword === 'required') {
    const missing = (finding.params as { requiredProperties: string[] }).requiredProperties[0] ?? '';
    return invalid([...path, missing].join('.'), 'it is missing');
  }
  const shown = unquoted.has(path[0] ?? '') ? 'its value' : quoteValue(actual);
  return invalid(path.length === 0 ? where : path.join('.'), `${shown} ${problemOf(finding, schema, path)}`);
}

function problemOf(finding: Finding, schema: TSchema, path: string[]): string {
  const parameters = finding.params as Record<string, unknown>;
  if (inUnion(finding)) return 'is none of the forms that it can have';
  switch (finding.keyword) {
    case 'type':
      return `is not of type ${String(parameters.type)}`;
    case 'minimum':
      return `is less than ${String(parameters.limit)}`;
    case 'maximum':
      return `is more than ${String(parameters.limit)}`;
    case 'minLength':
    case 'minItems':
      return 'is empty';
    case 'maxLength':
    case 'maxItems':
    case 'maxProperties':
      return `is longer than ${String(parameters.limit)}`;
    case 'pattern':
      return patternProblem(String(parameters.pattern), fieldSchema(schema, path)?.description);
    case 'enum':
    case 'const':
      return `is not one of ${quoteValue(parameters.allowedValues ?? parameters.allowedValue)}`;
    default:
      return finding.message;
  }
}

/** What does not fit a pattern, in words: patterns are for programs. */
function patternProblem(pattern: string, description: unknown): string {
  if (pattern === tagPattern) {
    return 'is no name: names are of letters, digits, - and _, begin with a letter or digit, and have at most 64 characters';
  }
  if (/^\^\[\^\\u0000\][*+]\$$/.test(pattern)) return 'contains a NUL byte';
  return typeof description === 'string' ? `is not allowed: ${description}` : `does not match ${pattern}`;
}

/** Alternatives of a union each report why they do not fit; no single one of these is the reason. */
function inUnion(finding: Finding): boolean {
  return finding.schemaPath.includes('/anyOf');
}

function invalid(field: string, problem: string): ApiError {
  return new ApiError('invalid_argument', { field: quoteValue(field).slice(1, -1), problem });
}

function segments(pointer: string): string[] {
  return pointer
    .split('/')
    .slice(1)
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}

interface AnySchema {
  properties?: Record<string, AnySchema>;
  patternProperties?: Record<string, AnySchema>;
  items?: AnySchema;
  description?: unknown;
}

function fieldSchema(schema: TSchema, path: string[]): AnySchema | undefined {
  return path.reduce<AnySchema | undefined>(
    (at, key) => at?.properties?.[key] ?? (at?.items || undefined),
    schema as AnySchema,
  );
}

function isRecord(schema: TSchema, name: string | undefined): boolean {
  return name !== undefined && (schema as AnySchema).properties?.[name]?.patternProperties !== undefined;
}

function known(schema: TSchema, path: string[]): string {
  const owner = fieldSchema(schema, path.slice(0, -1));
  return Object.keys(owner?.properties ?? {}).join(', ') || 'there are none';
}
