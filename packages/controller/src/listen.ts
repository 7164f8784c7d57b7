/** Where the daemon listens. */
import { chmodSync, lstatSync, rmSync } from 'node:fs';
import type { Server as HttpServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { defaultPort, quoteValue } from '@forkd/api';
import { ApiError } from './errors.js';
import type { Server } from './http.js';

/** Longest path of a unix socket that Linux takes, in bytes. */
const maxSocketPath = 107;

export interface TcpAddress {
  host: string;
  port: number;
  /** Whether somebody asked for it: then a failure is an error, not a remark. */
  explicit: boolean;
}

/**
 * Understands `--bind`: HOST:PORT, [ADDRESS]:PORT, or `none`. Absent: the default port on the loopback interface.
 *
 * @throws ApiError invalid_argument
 */
export function parseBind(text: string | undefined): TcpAddress | null {
  if (text === undefined) return { host: '127.0.0.1', port: defaultPort, explicit: false };
  if (text === 'none') return null;
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})$/.exec(text);
  const port = Number(match?.[3]);
  if (match === null || port > 65_535) {
    throw new ApiError('invalid_argument', {
      field: 'bind',
      problem: `${quoteValue(text)} is not HOST:PORT such as 127.0.0.1:${defaultPort}, and not "none"`,
    });
  }
  return { host: (match[1] ?? match[2]) as string, port, explicit: true };
}

/** Throws when a path cannot be that of a unix socket. */
export function checkSocketPath(path: string, home: string): void {
  if (Buffer.byteLength(path) <= maxSocketPath) return;
  const problem = `its path makes that of the socket longer than the ${maxSocketPath} bytes that Linux allows`;
  throw new ApiError('home_unusable', { path: home, problem });
}

/** Listens on the unix socket, mode 0600. Only for who holds the lock: what is there of an earlier life is removed. */
export async function listenLocal(app: Server, path: string, home: string): Promise<void> {
  const stale = lstatSync(path, { throwIfNoEntry: false });
  if (stale !== undefined && !stale.isSocket()) {
    throw new ApiError('home_unusable', { path: home, problem: `${path} is in the way: it is not a socket` });
  }
  if (stale !== undefined) rmSync(path, { force: true });
  try {
    await app.listen({ path });
    chmodSync(path, 0o600);
  } catch (cause) {
    const problem = cause instanceof Error ? cause.message : String(cause);
    throw new ApiError('home_unusable', { path: home, problem }, { cause });
  }
}

/** Listens on TCP; resolves with HOST:PORT. @throws ApiError address_unusable */
export async function listenRemote(server: HttpServer, address: TcpAddress): Promise<string> {
  const { host, port } = address;
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen({ host, port, exclusive: true }, () => {
        server.off('error', reject);
        resolve();
      });
    });
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    const problem = code === 'EADDRINUSE' ? 'the port is in use by another program' : message;
    throw new ApiError('address_unusable', { where: written(host, port), problem }, { cause });
  }
  return written(host, (server.address() as AddressInfo).port);
}

function written(host: string, port: number): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}
