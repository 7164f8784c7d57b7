import { AgentError } from './errors.js';

/** What a caller that gave up is told. */
export function abortedError(what: string, signal: AbortSignal): AgentError {
  return new AgentError('aborted', `${what} was aborted`, { cause: signal.reason });
}

/** @throws AgentError `aborted` when there is no point in beginning. */
export function refuseAborted(what: string, signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw abortedError(what, signal);
}

/**
 * Waits for a promise until a signal or a deadline comes first; `giveUp` is told then, and its error is the result.
 * The timer does not keep the program alive.
 */
export async function settle<T>(
  promise: Promise<T>,
  o: { signal?: AbortSignal | undefined; deadlineMs?: number },
  what: string,
  giveUp: (error: AgentError) => void,
): Promise<T> {
  const { signal, deadlineMs } = o;
  if (signal === undefined && deadlineMs === undefined) return await promise;
  let timer: NodeJS.Timeout | undefined;
  let onAbort: (() => void) | undefined;
  const gaveUp = new Promise<never>((_, reject) => {
    const stop = (error: AgentError): void => {
      giveUp(error);
      reject(error);
    };
    if (signal?.aborted) return stop(abortedError(what, signal));
    if (signal) {
      onAbort = () => stop(abortedError(what, signal));
      signal.addEventListener('abort', onAbort, { once: true });
    }
    if (deadlineMs !== undefined) {
      timer = setTimeout(
        () =>
          stop(new AgentError('timeout', `the guest agent did not answer ${what} within ${deadlineMs} ms`)),
        deadlineMs,
      );
      timer.unref();
    }
  });
  try {
    return await Promise.race([promise, gaveUp]);
  } finally {
    clearTimeout(timer);
    if (onAbort) signal?.removeEventListener('abort', onAbort);
  }
}
