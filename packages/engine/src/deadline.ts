import { EngineError } from './errors.js';

/**
 * A signal that fires when `signal` does or after `ms` milliseconds, with an EngineError `timeout` that says what took too long.
 * Dispose it, so that its timer ends.
 *
 * @example
 * using limit = deadline('boot of the guest', 60_000, signal);
 * await boot(limit.signal);
 */
export function deadline(
  what: string,
  ms: number,
  signal?: AbortSignal,
): { signal: AbortSignal } & Disposable {
  const controller = new AbortController();
  const timer = setTimeout(
    () => controller.abort(new EngineError('timeout', `${what} took longer than ${ms / 1000} s`)),
    ms,
  );
  return {
    signal: signal ? AbortSignal.any([signal, controller.signal]) : controller.signal,
    [Symbol.dispose]: () => clearTimeout(timer),
  };
}

/** Waits for `promise`, or rejects with the reason of `signal`; the promise goes on unheard. */
export async function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted();
  let onAbort: (() => void) | undefined;
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    if (onAbort) signal.removeEventListener('abort', onAbort);
  }
}
