import type { Scenario } from './types.js';

/** How one behaviour came out on one engine and accelerator. */
export interface Result {
  scenario: Pick<Scenario, 'area' | 'name'>;
  state: 'pass' | 'fail';
  ms: number;
  error?: string;
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

/** Behaviour x engine and accelerator, with the seconds that each took. */
export function table(columns: readonly Column[]): string {
  const rows = columns.find(({ results }) => results.length > 0)?.results;
  if (!rows) return 'nothing ran';
  const titles = columns.map(({ title }) => title.padStart(16)).join('');
  const lines = [`${'area'.padEnd(9)}${'behaviour'.padEnd(100)}${titles}`];
  for (const [row, { scenario }] of rows.entries()) {
    const cells = columns.map(({ results }) => {
      const result = results[row];
      const text = result ? `${result.state} ${(result.ms / 1000).toFixed(1)} s` : 'not run';
      return text.padStart(16);
    });
    lines.push(`${scenario.area.padEnd(9)}${scenario.name.padEnd(100)}${cells.join('')}`);
  }
  const sums = columns.map(({ results }) =>
    `${results.filter(({ state }) => state === 'pass').length}/${results.length}`.padStart(16),
  );
  lines.push(`${'passed'.padEnd(109)}${sums.join('')}`);
  return lines.join('\n');
}
