import { orAborted } from '../deadline.js';
import type { ErrorCode } from '../error-codes.js';
import { EngineError } from '../errors.js';
import { errnoIn, hostFault } from '../host/fault.js';
import { describeFault, type MemoryFault, type Shim, type VmmExit } from '../shim/index.js';

/** How long a shim may take to tell of an end after a connection broke, ms. */
const EXIT_MS = 200;

/** Waits for `promise`; if the VMM ends first, fails with what it said. */
export async function orEnded<T>(promise: Promise<T>, shim: Shim, signal: AbortSignal): Promise<T> {
  promise.catch(() => {});
  const ended = shim.exited.then((exit): never => {
    throw endedError(exit);
  });
  ended.catch(() => {});
  try {
    return await orAborted(Promise.race([promise, ended]), signal);
  } catch (error) {
    if (signal.aborted) throw error;
    // The connection may break a moment before the shim has told of the end, which says more.
    const exit = await Promise.race([
      shim.exited,
      new Promise<null>((r) => setTimeout(r, EXIT_MS, null).unref()),
    ]);
    throw exit === null ? error : endedError(exit, error);
  }
}

/** The end of a VMM as the failure of what was asked of it; where the host was at its end, or a file was damaged, that. */
export function endedError(exit: VmmExit, cause?: unknown): EngineError {
  const fault = exit.kind === 'signaled' ? exit.memoryFault : undefined;
  const failure = new EngineError(
    fault ? codes[fault.kind] : 'vmm_failed',
    `the VMM ended ${describeExit(exit)}`,
    {
      details: { exit },
      ...(fault && { remedy: describeFault(fault).remedy }),
      ...(cause !== undefined && { cause }),
    },
  );
  if (fault) return failure;
  const errno = errnoIn(exit.lastWords);
  return hostFault(Object.assign(new Error(failure.message, { cause: failure }), { code: errno })) ?? failure;
}

const codes = {
  cut_short: 'snapshot_corrupt',
  disk_full: 'insufficient_disk',
  unknown: 'vmm_failed',
} as const satisfies Record<MemoryFault['kind'], ErrorCode>;

/** How a VMM ended, for people. */
export function describeExit(exit: VmmExit): string {
  const words = exit.lastWords.trim();
  const said = words === '' ? '' : `; it said: ${words.slice(-800)}`;
  switch (exit.kind) {
    case 'exited':
      return `with code ${exit.code}${said}`;
    case 'signaled':
      return `by ${exit.signal}${exit.memoryFault ? `: ${describeFault(exit.memoryFault).what}` : ''}${said}`;
    case 'unknown':
      return `for a reason that nobody saw${said}`;
  }
}
