import { type ChildProcess, spawn } from 'node:child_process';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { shimFrames } from '@forkd/wire';
import { EngineError, messageOf } from '../errors.js';
import { hostFault } from '../host/fault.js';
import { readTail } from '../read-tail.js';
import { asEngineError } from './client.js';
import { ShimConnection, ShimRefusal } from './connection.js';
import { decodeInfo, type ShimInfo } from './protocol.js';
import type { StartShimOptions } from './types.js';

const DEFAULT_TIMEOUT_MS = 10_000;

/**
 * Runs the shim's program with a connection of its own and asks the first request.
 *
 * @throws ShimRefusal turned EngineError; nothing is left running then
 */
export async function launch(
  mode: '--start' | '--adopt',
  dir: string,
  type: number,
  payload: Buffer,
  options: StartShimOptions,
): Promise<{ connection: ShimConnection; info: ShimInfo }> {
  const child = spawn(options.binary, [mode, dir], {
    detached: true,
    stdio: ['ignore', 'ignore', 'ignore', 'pipe'],
    env: { LC_ALL: 'C' },
  });
  const failed = new Promise<never>((_, reject) => {
    child.once('error', (error) => reject(cannotRun(options.binary, error)));
  });
  failed.catch(() => {});
  if (child.pid === undefined) return failed;
  child.unref();
  const connection = new ShimConnection(child.stdio[3] as Socket);
  const timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
  const what = mode === '--start' ? 'start of a VMM' : 'adoption of a VMM';
  try {
    const answer = connection.request(type, payload, what, timeoutMs, options.signal);
    return { connection, info: decodeInfo(await Promise.race([answer, failed])) };
  } catch (error) {
    if (error instanceof ShimRefusal) {
      connection.close();
      throw asEngineError(error);
    }
    await abandon(child, connection);
    throw await withLog(error, dir, options.signal);
  }
}

/** No answer came, or nobody waits for it any more. The VMM, if there is one, ends with its shim's last deed. */
async function abandon(child: ChildProcess, connection: ShimConnection): Promise<void> {
  // Requests are served in order: these two after the start, once it is through.
  await connection
    .request(shimFrames.KILL, Buffer.alloc(0), 'kill', 2000)
    .then(() => connection.request(shimFrames.END, Buffer.alloc(0), 'end', 2000))
    .catch(() => child.kill('SIGKILL'));
  connection.close();
}

async function withLog(error: unknown, dir: string, signal?: AbortSignal): Promise<unknown> {
  if (signal?.aborted || !(error instanceof EngineError) || error.code !== 'vmm_failed') return error;
  const log = await readTail(join(dir, 'shim.log')).catch(() => '');
  return new EngineError(
    'vmm_failed',
    `the shim ended before it could answer; its log: ${log.slice(-500) || '(empty)'}`,
    {
      cause: error,
    },
  );
}

/** It is not there, or the host is at a limit. */
function cannotRun(binary: string, error: Error): EngineError {
  const fault = hostFault(error, `cannot run the shim ${binary}`);
  if (fault) return fault;
  return new EngineError('host_unfit', `cannot run the shim ${binary}: ${messageOf(error)}`, {
    remedy: 'Build it: npm run build',
    cause: error,
  });
}
