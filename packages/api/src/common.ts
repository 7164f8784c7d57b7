/** Schemas that several resources share: names, ids, environment. */
import Type, { type Static, type TObject, type TProperties } from 'typebox';

/** Port of the REST API on the loopback interface. */
export const defaultPort = 8889;

const crockford = '0-9a-hjkmnp-tv-z';

/** A sandbox id: `sb-` and 16 characters of Crockford's base32, lower case. */
export const sandboxIdPattern = `^sb-[${crockford}]{16}$`;
/** A snapshot id: `sn-` and 16 characters of Crockford's base32, lower case. */
export const snapshotIdPattern = `^sn-[${crockford}]{16}$`;
/** A tag, or the name of a template. */
export const tagPattern = '^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$';

/** An object that refuses fields it does not know. */
export function closed<P extends TProperties>(
  properties: P,
  options: Record<string, unknown> = {},
): TObject<P> {
  return Type.Object(properties, { additionalProperties: false, ...options });
}

export const SnapshotRef = Type.String({
  pattern: tagPattern,
  description: 'Tag or id (sn-...) of a snapshot.',
});
export const Tag = Type.String({
  pattern: tagPattern,
  description: 'Letters, digits, - and _; at most 64 characters.',
});

/** Environment variables: names without `=` and NUL, values without NUL. */
export const Env = Type.Record(
  Type.String({ pattern: '^[^=\\u0000]+$' }),
  Type.String({ pattern: '^[^\\u0000]*$' }),
  {
    additionalProperties: false,
    description: 'Environment variables that are added to those of the template.',
  },
);

/** A string that a C program can receive. */
export const CString = Type.String({ pattern: '^[^\\u0000]*$' });

/** Seconds a call may last. 0 and absence mean the default of the call. */
export const TimeoutSecs = Type.Number({
  minimum: 0,
  maximum: 2_000_000,
  description: 'Seconds; fractions allowed.',
});

/** How bytes are carried in JSON strings: as UTF-8 text, where invalid bytes become U+FFFD, or exactly, in base64. */
export const TextEncoding = Type.Union([Type.Literal('utf8'), Type.Literal('base64')], {
  description: 'utf8 (default; invalid bytes become U+FFFD) or base64 (exact).',
});
export type TextEncoding = Static<typeof TextEncoding>;

/** Whether `text` has the form of a snapshot id. */
export function isSnapshotId(text: string): boolean {
  return new RegExp(snapshotIdPattern).test(text);
}

/** Whether `text` has the form of a sandbox id. */
export function isSandboxId(text: string): boolean {
  return new RegExp(sandboxIdPattern).test(text);
}

/** Whether `text` may be a tag: of the right characters, and not to be mistaken for an id. */
export function isTag(text: string): boolean {
  return new RegExp(tagPattern).test(text) && !isSnapshotId(text) && !isSandboxId(text);
}
