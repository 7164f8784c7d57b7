import type net from 'node:net';
import { orAborted } from '../deadline.js';
import { EngineError } from '../errors.js';
import { connectUnix } from '../unix-socket.js';

/** Longest answer to CONNECT, bytes: "OK " and a port. */
const LONGEST_ANSWER = 32;

/**
 * Connects to a port of the guest through the socket that Firecracker makes for its vsock device.
 *
 * @param path absolute path of that socket
 * @throws EngineError guest_unreachable when the guest refuses, or Firecracker gives up asking it
 */
export async function dialVsock(path: string, port: number, signal: AbortSignal): Promise<net.Socket> {
  const socket = await connectUnix(path, signal);
  try {
    socket.write(`CONNECT ${port}\n`);
    const rest = await orAborted(answered(socket, port), signal);
    if (rest.length > 0) socket.unshift(rest);
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

/** Waits for the line of acceptance; returns what came after it. The socket is paused then. */
function answered(socket: net.Socket, port: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    let got: Buffer = Buffer.alloc(0);
    const refuse = (why: string): void =>
      settle(() =>
        reject(
          new EngineError('guest_unreachable', `the guest's vsock port ${port} cannot be reached: ${why}`),
        ),
      );
    const onData = (chunk: Buffer): void => {
      got = Buffer.concat([got, chunk]);
      const end = got.indexOf(10);
      if (end < 0 && got.length <= LONGEST_ANSWER) return;
      const line = got.toString('latin1', 0, end < 0 ? LONGEST_ANSWER : end);
      if (end < 0 || !/^OK \d+$/.test(line)) refuse(`Firecracker answered ${JSON.stringify(line)}`);
      else settle(() => resolve(got.subarray(end + 1)));
    };
    const onClose = (): void => refuse('the connection was closed');
    const onError = (error: Error): void => refuse(error.message);
    const settle = (act: () => void): void => {
      socket.pause();
      socket.off('data', onData).off('close', onClose).off('error', onError);
      act();
    };
    socket.on('data', onData).on('close', onClose).on('error', onError);
  });
}
