/** The steps of a build: told as they go, logged, and named in what fails. */
import { EngineError, messageOf } from '../errors.js';
import { hostFault } from '../host/fault.js';
import type { BuildProgress } from '../types.js';
import type { BuildLog } from './log.js';

/** Output of a step that goes into its error, bytes. */
const TAIL = 8192;

/** What a step's body may tell. */
export interface StepContext {
  /** Output for people: into the log, and to whoever follows the build. */
  output(text: string): void;
  /** A line of output. */
  line(text: string): void;
}

export interface StepReport<T> {
  /** Nothing had to be done. */
  cached?: (result: T) => boolean;
  detail?: (result: T) => string;
}

export interface StepsOptions {
  name: string;
  log: BuildLog;
  signal?: AbortSignal | undefined;
  onProgress?: ((event: BuildProgress) => void) | undefined;
}

/** These tell of host, template or caller, not of the build. */
const passed: ReadonlySet<string> = new Set([
  'host_unfit',
  'invalid_argument',
  'template_invalid',
  'insufficient_disk',
  'insufficient_memory',
  'limit_reached',
]);

/** What a step came to. */
export interface StepRecord {
  step: string;
  title: string;
  cached: boolean;
  ms: number;
}

export class BuildSteps {
  readonly #options: StepsOptions;
  readonly #records: StepRecord[] = [];
  #running: { step: string; title: string; started: number } | null = null;

  constructor(options: StepsOptions) {
    this.#options = options;
  }

  /** Steps that are done, and the one that runs with what it has taken until now. */
  records(): StepRecord[] {
    if (this.#running === null) return [...this.#records];
    const { step, title, started } = this.#running;
    return [...this.#records, { step, title, cached: false, ms: performance.now() - started }];
  }

  /**
   * Runs a step.
   *
   * @param step short name, for programs
   * @param title what it does, for people
   * @throws EngineError `build_failed` with details {step, output, log}; `build_cancelled` when the signal has aborted; an error
   * about host or template as it is
   */
  async run<T>(
    step: string,
    title: string,
    body: (context: StepContext) => Promise<T>,
    report: StepReport<T> = {},
  ): Promise<T> {
    const { log, onProgress, signal } = this.#options;
    const started = performance.now();
    this.#running = { step, title, started };
    let tail = '';
    const output = (text: string) => {
      if (text === '') return;
      log.write(text);
      tail = (tail + text).slice(-TAIL);
      onProgress?.({ type: 'log', step, text });
    };
    log.line(`== ${step}: ${title}`);
    onProgress?.({ type: 'step', step, title, state: 'running' });
    try {
      signal?.throwIfAborted();
      const result = await body({ output, line: (text) => output(`${text}\n`) });
      const ms = performance.now() - started;
      const state = report.cached?.(result) ? 'cached' : 'done';
      const detail = report.detail?.(result);
      this.#records.push({ step, title, cached: state === 'cached', ms });
      this.#running = null;
      log.line(`== ${step}: ${state} in ${(ms / 1000).toFixed(1)} s${detail ? `: ${detail}` : ''}`);
      onProgress?.({ type: 'step', step, title, state, ms, ...(detail && { detail }) });
      return result;
    } catch (error) {
      const ms = performance.now() - started;
      const failure = this.#failure(step, error, tail);
      log.line(`== ${step}: failed after ${(ms / 1000).toFixed(1)} s: ${failure.message}`);
      onProgress?.({ type: 'step', step, title, state: 'failed', ms, detail: messageOf(error) });
      throw failure;
    }
  }

  #failure(step: string, error: unknown, tail: string): EngineError {
    const { name, log, signal } = this.#options;
    if (signal?.aborted)
      return new EngineError('build_cancelled', `building template ${name} was cancelled in step ${step}`, {
        details: { step, log: log.path },
        cause: error,
      });
    const known = hostFault(error) ?? (error instanceof EngineError ? error : undefined);
    const output = tail || known?.details?.output;
    const details = { ...known?.details, step, log: log.path, ...(output !== undefined && { output }) };
    if (known && passed.has(known.code))
      return new EngineError(known.code, known.message, {
        ...(known.remedy !== undefined && { remedy: known.remedy }),
        details,
        cause: error,
      });
    return new EngineError(
      'build_failed',
      `building template ${name} failed in step ${step}: ${messageOf(error)}`,
      {
        remedy: known?.remedy ?? `Read the log ${log.path}.`,
        details,
        cause: error,
      },
    );
  }
}
