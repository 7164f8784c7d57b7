/** Runs behaviours on one stage, each under a bound of time. */
import type { Behaviour } from './events.js';
import type { Result } from './table.js';
import type { Scenario, Stage } from './types.js';

/** One behaviour may take this long on an ordinary host, ms, */
const SCENARIO_MS = 60_000;
/** and this much longer for each time that the host is slower: the longest takes 3 s on an ordinary one. */
const SLOW_MS = 30_000;

export interface RunOptions {
  /** performance.now() after which no behaviour begins; one that runs then is late as well. */
  until: number;
  say: (text: string) => void;
  /** Whether the hardware that guests run on is itself emulated, and loses one now and then (docs/kvm-bench.md). */
  emulated?: boolean;
  begins: (behaviour: Behaviour) => void;
  /** Told of each result as it comes. */
  ends: (result: Result) => void;
}

/** How often a behaviour is tried. */
const TRIES = 2;
/** Where each try before has lost a guest without a word, on hardware that is emulated. */
const EMULATED_TRIES = 4;

/** Shows all on one stage, one after another. As with other tests over machines, what fails is tried once more, and the report says so. */
export async function runScenarios(
  scenarios: readonly Scenario[],
  stage: Stage,
  options: RunOptions,
): Promise<void> {
  for (const scenario of scenarios) {
    options.begins({ area: scenario.area, name: scenario.name });
    options.ends(await showAgain(scenario, stage, options));
  }
}

async function showAgain(scenario: Scenario, stage: Stage, options: RunOptions): Promise<Result> {
  const wrong: string[] = [];
  for (let lost = 0; ; ) {
    const before = stage.lostGuests;
    const result = await show(scenario, stage, options);
    if (stage.lostGuests > before) lost += 1;
    // What took too long may still be at it.
    const over = result.state !== 'fail' || result.isTimeout || options.until <= performance.now();
    const most = options.emulated && lost > wrong.length ? EMULATED_TRIES : TRIES;
    if (over || wrong.length + 1 >= most)
      return { ...result, ...(wrong.length > 0 && { firstTries: wrong }) };
    wrong.push(result.error ?? '');
  }
}

async function show(
  scenario: Scenario,
  stage: Stage,
  { until, say }: RunOptions,
): Promise<Result & { isTimeout?: boolean }> {
  const { area, name } = scenario;
  const began = performance.now();
  const left = until - began;
  const result = (state: Result['state'], error?: string): Result => {
    const ms = performance.now() - began;
    say(
      `${state === 'fail' ? 'FAIL' : state} ${(ms / 1000).toFixed(1)} s  ${area}: ${name}${error ? `: ${error}` : ''}`,
    );
    return { scenario: { area, name }, state, ms, ...(error !== undefined && { error }) };
  };
  if (left <= 0) return result('late', 'the time of the whole run was over before it began');
  const limit = Math.min(left, SCENARIO_MS + SLOW_MS * stage.slowness);
  const bound = new Error(`took longer than ${Math.round(limit)} ms`);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(bound), limit);
  });
  try {
    await Promise.race([scenario.run(stage), late]);
    return result('pass');
  } catch (error) {
    if (error === bound && limit === left)
      return result('late', 'the time of the whole run was over before it came to its end');
    return { ...result('fail', textOf(error)), isTimeout: error === bound };
  } finally {
    clearTimeout(timer);
  }
}

export function textOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
