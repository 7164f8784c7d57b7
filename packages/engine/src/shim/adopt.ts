import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { shimFrames } from '@forkd/wire';
import { EngineError } from '../errors.js';
import { readTail } from '../read-tail.js';
import { connectUnix } from '../unix-socket.js';
import { type Recover, ShimClient } from './client.js';
import { ShimConnection } from './connection.js';
import { launch } from './launch.js';
import { explainExit } from './memory-fault.js';
import { decodeInfo, encodeAdopt, exitFrom, type ShimInfo } from './protocol.js';
import { readRecord, runs, type ShimRecord } from './record.js';
import type { Shim, StartShimOptions } from './types.js';

const LAST_WORDS = 4096;
const HELLO_MS = 5000;
/** How long a shim may take to be gone after its sockets, ms. The end of somebody else's child raises no event here. */
const SETTLE_MS = 1000;
const SETTLE_STEP_MS = 5;

/**
 * Finds the shim of a run directory: connects to it where it runs, starts a new one where it has died and its VMM lives.
 *
 * @param dir the run directory, absolute
 * @throws EngineError sandbox_exited when both are gone; `details.exit` is a VmmExit
 */
export async function adoptShim(dir: string, options: StartShimOptions): Promise<Shim> {
  const { connection, info } = await recoverShim(dir, options);
  return new ShimClient(connection, info, dir, recovery(options), options.mapped);
}

/** What finds a shim again later. The signal of its start is over by then, however that went. */
export function recovery({ signal: _, ...options }: StartShimOptions): Recover {
  return (dir) => recoverShim(dir, options);
}

/** A connection to whoever is, or now becomes, the shim of a run directory. */
export async function recoverShim(
  dir: string,
  options: StartShimOptions,
): Promise<{ connection: ShimConnection; info: ShimInfo }> {
  const until = performance.now() + SETTLE_MS;
  for (;;) {
    options.signal?.throwIfAborted();
    const record = await readRecord(dir);
    if (!record) throw await gone(dir, null, options);
    try {
      if (await runs(record.pid, record.startTime)) return await greet(dir, record, options.signal);
      if (!(await runs(record.vmmPid, record.vmmStartTime))) throw await gone(dir, record, options);
      return await launch('--adopt', dir, shimFrames.ADOPT, encodeAdopt(record, options.abilities), options);
    } catch (error) {
      // Between the look and the act a process may have ended (its sockets go first), or another shim taken over: look again.
      const final = error instanceof EngineError && error.code === 'sandbox_exited';
      if (final || options.signal?.aborted || performance.now() > until) throw error;
      await setTimeout(SETTLE_STEP_MS);
    }
  }
}

async function greet(
  dir: string,
  record: ShimRecord,
  signal?: AbortSignal,
): Promise<{ connection: ShimConnection; info: ShimInfo }> {
  const connection = new ShimConnection(await connectUnix(join(dir, 'shim.sock'), signal));
  try {
    const info = decodeInfo(
      await connection.request(shimFrames.HELLO, Buffer.alloc(0), 'greeting', HELLO_MS, signal),
    );
    // A socket's name proves nothing: it has to be the process of the record.
    if (info.pid !== record.pid || info.startTime !== record.startTime || info.vmmPid !== record.vmmPid)
      throw new EngineError(
        'vmm_failed',
        `${dir}/shim.sock belongs to process ${info.pid}, shim.json names ${record.pid}`,
      );
    return { connection, info };
  } catch (error) {
    connection.close();
    throw error;
  }
}

async function gone(
  dir: string,
  record: ShimRecord | null,
  { mapped = [] }: StartShimOptions,
): Promise<EngineError> {
  const words = (await readTail(join(dir, 'vmm.log')).catch(() => '')).slice(-LAST_WORDS);
  const exit = await explainExit(exitFrom(record?.exitKind, record?.exitValue ?? 0, words), mapped);
  return new EngineError('sandbox_exited', `no VMM runs in ${dir}`, { details: { exit } });
}
