import type { AgentError } from './errors.js';
import type { EvalOptions, EvalResult } from './types.js';

/** One `eval` under way: gathers what comes for it, each part up to a limit. */
export class Evaluation {
  readonly id: string;
  readonly #max: number;
  readonly #onOutput: EvalOptions['onOutput'];
  readonly #out = { stdout: [] as string[], stderr: [] as string[] };
  readonly #room: { stdout: number; stderr: number };
  #truncated = false;
  readonly #end: Promise<Record<string, unknown>>;
  #resolve!: (result: Record<string, unknown>) => void;
  #reject!: (error: Error) => void;

  constructor(id: string, max: number, onOutput: EvalOptions['onOutput']) {
    this.id = id;
    this.#max = max;
    this.#onOutput = onOutput;
    this.#room = { stdout: max, stderr: max };
    this.#end = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#end.catch(() => {});
  }

  /** Longest line that may come for it: the value, each character escaped. */
  get maxLine(): number {
    return this.#max * 6;
  }

  /** A message of the interpreter with this evaluation's id; what is not as documented counts for nothing. */
  take(message: object): void {
    const { type, stream, text } = message as Record<string, unknown>;
    if (type === 'result') this.#resolve(message as Record<string, unknown>);
    else if (type === 'output' && (stream === 'stdout' || stream === 'stderr') && typeof text === 'string') {
      const kept = text.slice(0, this.#room[stream]);
      this.#room[stream] -= kept.length;
      if (kept.length > 0) this.#out[stream].push(kept);
      if (kept.length < text.length) this.#truncated = true;
      try {
        this.#onOutput?.(stream, text);
      } catch (error) {
        // The caller's fault is the caller's to hear, not the stream's.
        this.#reject(error instanceof Error ? error : new Error(String(error)));
      }
    }
  }

  fail(error: AgentError): void {
    this.#reject(error);
  }

  async result(timedOut: () => boolean): Promise<EvalResult> {
    const { value, error, truncated } = await this.#end;
    const text = typeof value === 'string' ? value : null;
    const failure = readError(error);
    return {
      ...this.#output(),
      value: text === null ? null : text.slice(0, this.#max),
      error: failure,
      timedOut: timedOut() && failure !== null,
      truncated: this.#truncated || truncated === true || (text !== null && text.length > this.#max),
    };
  }

  /** It did not stop when told to, so the interpreter had to go. */
  killed(afterMs: number): EvalResult {
    return {
      ...this.#output(),
      value: null,
      error: {
        type: 'InterpreterKilled',
        message: `the code did not stop within ${afterMs} ms of its interrupt: the interpreter was killed`,
        traceback: '',
      },
      timedOut: true,
      truncated: this.#truncated,
    };
  }

  #output(): { stdout: string; stderr: string } {
    return { stdout: this.#out.stdout.join(''), stderr: this.#out.stderr.join('') };
  }
}

function readError(error: unknown): EvalResult['error'] {
  if (typeof error !== 'object' || error === null) return null;
  const { type, message, traceback } = error as Record<string, unknown>;
  const text = (value: unknown): string => (typeof value === 'string' ? value : '');
  return { type: text(type) || 'Error', message: text(message), traceback: text(traceback) };
}
