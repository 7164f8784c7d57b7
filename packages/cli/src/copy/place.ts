import { CliError } from '../failure.js';

/** One end of a copy. */
export type Place =
  | { kind: 'local'; path: string }
  /** stdin or stdout. */
  | { kind: 'stream' }
  | { kind: 'guest'; sandbox: string; path: string };

/**
 * Reads SRC or DST of `forkd cp`: `ID:PATH` is in a sandbox, `-` is a stream, all else is here. A file here whose name has a colon
 * is written `./NAME`.
 *
 * @example parsePlace('sb-0123456789abcdef:/tmp/x')
 */
export function parsePlace(text: string): Place {
  if (text === '-') return { kind: 'stream' };
  const colon = text.indexOf(':');
  const head = text.slice(0, colon);
  if (colon < 1 || head.includes('/')) {
    if (text === '') throw new CliError('invalid', 'an empty path was given');
    return { kind: 'local', path: text };
  }
  const path = text.slice(colon + 1);
  if (path === '')
    throw new CliError(
      'invalid',
      `${JSON.stringify(text)} has no path`,
      'write ID:PATH, such as ID:/tmp/file',
    );
  return { kind: 'guest', sandbox: head, path };
}

/** Joins a directory and a name of ours or of a guest. */
export function joinPath(directory: string, name: string): string {
  return directory.endsWith('/') ? `${directory}${name}` : `${directory}/${name}`;
}

/** Last component of a path; `.` and `..` and `/` have none. */
export function baseName(path: string): string | undefined {
  const name = path.replace(/\/+$/, '').split('/').at(-1);
  return name === undefined || name === '' || name === '.' || name === '..' ? undefined : name;
}
