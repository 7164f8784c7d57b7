/** Code for warm interpreters. */
import { defaultTimeoutSecs, type EvalRequest, type EvalResponse } from '@forkd/api';
import type { EvalResult } from '@forkd/engine';
import { ApiError, toApiError } from './errors.js';
import { timeoutMsOf } from './exec.js';
import type { Sandboxes } from './sandboxes.js';

/** Calls of one interpreter queue: this much longer than its own limit may a call take. */
const queueMs = 20_000;

/**
 * Evaluates code. An exception of the code is an answer, not an error.
 *
 * @param signal The caller went away: the code is interrupted.
 * @param onOutput Called with output as it comes.
 */
export async function evaluate(
  sandboxes: Sandboxes,
  id: string,
  request: EvalRequest,
  signal: AbortSignal,
  onOutput?: (stream: 'stdout' | 'stderr', text: string) => void,
): Promise<EvalResponse> {
  const interpreters = await sandboxes.interpreters(id);
  const timeoutMs = timeoutMsOf(request.timeout_secs, defaultTimeoutSecs);
  const deadline = AbortSignal.timeout(timeoutMs + queueMs);
  const both = AbortSignal.any([signal, deadline]);
  const began = performance.now();
  try {
    const result = await interpreters.with(request.interpreter, both, (interpreter) =>
      interpreter.eval(request.code, {
        timeoutMs,
        signal: both,
        ...(onOutput !== undefined && { onOutput }),
      }),
    );
    return responseOf(result, performance.now() - began);
  } catch (error) {
    if (deadline.aborted && !signal.aborted) {
      const what = 'the code, and those that the interpreter had to finish before it,';
      throw new ApiError('timeout', { what, limit: `${(timeoutMs + queueMs) / 1000} s` }, { cause: error });
    }
    throw toApiError(error, { sandbox: id, value: `interpreter ${request.interpreter ?? '(default)'}` });
  }
}

function responseOf(result: EvalResult, ms: number): EvalResponse {
  const { error, timedOut } = result;
  return {
    result: result.value,
    error: error === null ? null : error.message === '' ? error.type : `${error.type}: ${error.message}`,
    exit_code: timedOut ? 124 : error === null ? 0 : 1,
    stdout: result.stdout,
    stderr: result.stderr,
    exception: error,
    timed_out: timedOut,
    duration_ms: ms,
  };
}
