import type { Behaviour } from './events.js';

/** How one behaviour came out on one engine and accelerator. */
export interface Result {
  scenario: Behaviour;
  /** `late`: the time of the whole run was over before it began, or came to its end. */
  state: 'pass' | 'fail' | 'late';
  ms: number;
  error?: string;
  /** What went wrong at each try before the last one. */
  firstTries?: string[];
}

/** All results of one engine and accelerator. */
export interface Column {
  /** Such as `qemu+kvm`. */
  title: string;
  engine: string;
  version: string;
  /** See `Stage`. */
  slowness: number;
  /** Empty where there was no daemon to show them on. */
  results: Result[];
  /** What went wrong outside of all behaviours. */
  trouble?: string;
}

/** Of one column, the result of a behaviour. */
export function resultOf({ results }: Column, { area, name }: Behaviour): Result | undefined {
  return results.find(({ scenario }) => scenario.area === area && scenario.name === name);
}

/**
 * Behaviour x engine and accelerator, with the seconds that each took.
 *
 * @param behaviours the rows
 */
export function table(columns: readonly Column[], behaviours: readonly Behaviour[]): string {
  const titles = columns.map(({ title }) => title.padStart(16)).join('');
  const width = Math.max(...behaviours.map(({ name }) => name.length)) + 1;
  const lines = [`${'area'.padEnd(9)}${'behaviour'.padEnd(width)}${titles}`];
  for (const behaviour of behaviours) {
    const cells = columns.map((column) => {
      const result = resultOf(column, behaviour);
      const again = result?.firstTries === undefined ? '' : '*'.repeat(result.firstTries.length);
      const text = result ? `${result.state}${again} ${(result.ms / 1000).toFixed(1)} s` : 'not run';
      return text.padStart(16);
    });
    lines.push(`${behaviour.area.padEnd(9)}${behaviour.name.padEnd(width)}${cells.join('')}`);
  }
  const sums = columns.map(({ results }) =>
    `${results.filter(({ state }) => state === 'pass').length}/${behaviours.length}`.padStart(16),
  );
  lines.push(`${'passed'.padEnd(9 + width)}${sums.join('')}`);
  return lines.join('\n');
}
