/** Where the daemon is, and what is shown to it. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { homeFiles, quoteValue, stateDirectory } from '@forkd/api';
import { clientError } from './errors.js';

export interface AddressOptions {
  /** Path of the daemon's unix socket. */
  socket?: string;
  /** `http://HOST:PORT` of a daemon that listens on TCP. */
  url?: string;
  /** Bearer token for `url`. Default: FORKD_TOKEN, else the token file in `home` where that is given. */
  token?: string;
  /** State directory whose socket is used. Default: FORKD_HOME, or what the XDG rules say. */
  home?: string;
}

/** A resolved address. */
export interface Address {
  /** Origin for HTTP. */
  origin: string;
  /** Unix socket to connect to instead of the origin's host. */
  socketPath: string | null;
  token: string | null;
  /** For messages. */
  where: string;
}

/** Longest path of a unix socket that Linux takes, in bytes. */
const maxSocketPath = 107;

/**
 * Finds the daemon: `url`, else `socket`, else FORKD_URL (with FORKD_TOKEN) when no `home` is given, else the socket in the state directory.
 *
 * @throws ForkdError invalid_argument for a malformed URL or a socket path that is too long, home_unusable when no home is known.
 */
export function resolveAddress(options: AddressOptions, env: NodeJS.ProcessEnv = process.env): Address {
  const url =
    options.url ??
    (options.socket === undefined && options.home === undefined ? env.FORKD_URL || undefined : undefined);
  if (url !== undefined) return tcpAddress(url, options, env);
  const socketPath = options.socket ?? join(homeOf(options, env), homeFiles.socket);
  if (Buffer.byteLength(socketPath) > maxSocketPath) {
    throw clientError('invalid_argument', {
      field: 'socket',
      problem: `the path ${quoteValue(socketPath)} is longer than the ${maxSocketPath} bytes that a unix socket can have`,
    });
  }
  return { origin: 'http://localhost', socketPath, token: options.token ?? null, where: socketPath };
}

function tcpAddress(url: string, options: AddressOptions, env: NodeJS.ProcessEnv): Address {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch (cause) {
    throw clientError(
      'invalid_argument',
      { field: 'url', problem: `${quoteValue(url)} is not a URL such as http://127.0.0.1:8889` },
      { cause },
    );
  }
  if (parsed.protocol !== 'http:' && parsed.protocol !== 'https:') {
    throw clientError('invalid_argument', {
      field: 'url',
      problem: `${quoteValue(url)} is neither http: nor https:`,
    });
  }
  const token = options.token ?? (env.FORKD_TOKEN || tokenOfHome(options.home));
  return { origin: parsed.origin, socketPath: null, token: token || null, where: parsed.origin };
}

/** A home's token goes to a URL only when the caller names that home: it is a secret of that daemon. */
function tokenOfHome(home: string | undefined): string | null {
  if (home === undefined) return null;
  try {
    return readFileSync(join(home, homeFiles.token), 'utf8').trim();
  } catch {
    return null;
  }
}

function homeOf(options: AddressOptions, env: NodeJS.ProcessEnv): string {
  const home = options.home ?? stateDirectory(env);
  if (home === null) {
    throw clientError('home_unusable', {
      path: '(none)',
      problem: 'none of FORKD_HOME, XDG_STATE_HOME and HOME is set',
    });
  }
  return home;
}
