/** Who may call. The unix socket is guarded by its mode; TCP by a bearer token, and against web pages by Host and Origin. */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import { closeSync, fchmodSync, fstatSync, openSync, readFileSync, writeSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { isIP, type Socket } from 'node:net';
import { hostname } from 'node:os';
import { paths, quoteValue } from '@forkd/api';
import { ApiError } from './errors.js';

/** Open to all who can connect, as in forkd v1: they tell nothing. */
const open = new Set<string>([paths.health(), paths.version()]);

export interface AuthOptions {
  token: string | null;
  /** Whether a connection came by the unix socket. */
  isLocal: (socket: Socket) => boolean;
  /** Host name that TCP is bound to. */
  boundHost: () => string | null;
}

/** Makes the check of every request. It throws the ApiError that refuses. */
export function createAuth(options: AuthOptions): (request: IncomingMessage) => void {
  const expected = options.token === null ? null : digest(options.token);
  return (request) => {
    const { origin } = request.headers;
    if (origin !== undefined) throw new ApiError('forbidden_origin', { value: quoteValue(origin) });
    if (options.isLocal(request.socket)) return;
    const { host } = request.headers;
    if (!isOurs(host, options.boundHost())) {
      throw new ApiError('forbidden_host', { value: quoteValue(host ?? '') });
    }
    if (open.has((request.url ?? '').split('?', 1)[0] ?? '')) return;
    const sent = /^Bearer +(\S+)$/i.exec(request.headers.authorization ?? '')?.[1];
    if (sent === undefined) {
      throw new ApiError('unauthorized', { problem: 'a bearer token is needed, and none was sent' });
    }
    // Of digests, so that the time tells neither length nor prefix.
    if (expected === null || !timingSafeEqual(digest(sent), expected)) {
      throw new ApiError('unauthorized', { problem: 'the bearer token is not that of this daemon' });
    }
  };
}

/**
 * A page in a browser can make a name of its own resolve to this host, but cannot make the browser send another Host. Addresses and the
 * names that this host has are ours, whatever the port: it may be forwarded.
 */
function isOurs(header: string | undefined, bound: string | null): boolean {
  const match = /^(?:\[([^\]]+)\]|([^:]+))(?::\d{1,5})?$/.exec(header ?? '');
  const name = (match?.[1] ?? match?.[2])?.toLowerCase();
  if (name === undefined) return false;
  return (
    isIP(name) !== 0 ||
    name === 'localhost' ||
    name === bound?.toLowerCase() ||
    name === hostname().toLowerCase()
  );
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

/**
 * Reads the token file, or makes it, mode 0600.
 *
 * @throws ApiError home_unusable when it cannot be, or holds no token.
 */
export function loadToken(path: string): string {
  try {
    const fd = openSync(path, 'wx', 0o600);
    const token = randomBytes(32).toString('base64url');
    try {
      writeSync(fd, `${token}\n`);
    } finally {
      closeSync(fd);
    }
    return token;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw unusable(path, error);
  }
  try {
    const fd = openSync(path, 'r');
    try {
      // Others must not read it, also where a copy or an editor has widened its mode.
      if ((fstatSync(fd).mode & 0o077) !== 0) fchmodSync(fd, 0o600);
      const token = readFileSync(fd, 'utf8').trim();
      if (!/^[!-~]{16,512}$/.test(token)) {
        throw new Error(
          'it holds no token (one line of 16 to 512 printable characters); remove it to have one made',
        );
      }
      return token;
    } finally {
      closeSync(fd);
    }
  } catch (error) {
    throw unusable(path, error);
  }
}

function unusable(path: string, cause: unknown): ApiError {
  const problem = cause instanceof Error ? cause.message : String(cause);
  return new ApiError('home_unusable', { path, problem: `its token file: ${problem}` }, { cause });
}
