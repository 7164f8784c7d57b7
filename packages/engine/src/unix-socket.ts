import { closeSync, constants, openSync } from 'node:fs';
import net from 'node:net';
import { basename, dirname } from 'node:path';
import { EngineError, messageOf } from './errors.js';

/** Longest path that a unix socket address holds, without its NUL. */
const LONGEST_ADDRESS = 107;

/**
 * Connects to a unix socket, however long its path is: a long one is reached through a descriptor of its directory.
 *
 * @param path absolute path of the socket
 * @param signal gives up
 * @throws EngineError vmm_failed when nothing listens there
 */
export async function connectUnix(path: string, signal?: AbortSignal): Promise<net.Socket> {
  signal?.throwIfAborted();
  const short = Buffer.byteLength(path) <= LONGEST_ADDRESS;
  const directory = short ? null : openSync(dirname(path), constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    const address = directory === null ? path : `/proc/self/fd/${directory}/${basename(path)}`;
    return await connected(address, path, signal);
  } finally {
    if (directory !== null) closeSync(directory);
  }
}

function connected(address: string, path: string, signal?: AbortSignal): Promise<net.Socket> {
  return new Promise((resolve, reject) => {
    const socket = net.connect({ path: address });
    const settle = (act: () => void): void => {
      socket.removeAllListeners();
      signal?.removeEventListener('abort', onAbort);
      act();
    };
    const onAbort = (): void =>
      settle(() => {
        socket.destroy();
        reject(signal?.reason);
      });
    socket.once('connect', () => settle(() => resolve(socket)));
    socket.once('error', (error) =>
      settle(() => {
        socket.destroy();
        reject(
          new EngineError('vmm_failed', `cannot connect to ${path}: ${messageOf(error)}`, { cause: error }),
        );
      }),
    );
    signal?.addEventListener('abort', onAbort, { once: true });
  });
}
