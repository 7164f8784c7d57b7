import { type Behaviour, keyOf } from './events.js';
import { type Column, resultOf, table } from './table.js';

/**
 * Prints one table of results, what has failed, and what ran.
 *
 * @param behaviours all that were to be shown on each column; none where nobody could say
 * @param seconds how long it took
 * @returns whether all behaviours hold on all columns
 */
export function report(
  columns: readonly Column[],
  behaviours: readonly Behaviour[],
  seconds: number,
): boolean {
  console.log(`\n${behaviours.length === 0 ? 'nothing ran' : table(columns, behaviours)}`);
  const failures = columns.flatMap((column) => failuresOf(column, behaviours));
  for (const text of failures) console.log(`\nFAILED on ${text}`);
  for (const { title, engine, version, slowness } of columns)
    if (engine !== '')
      console.log(`${title}: ${engine} ${version}, ${slowness.toFixed(1)} x slower than an ordinary host`);
  const on = columns.map(({ title }) => title).join(', ');
  console.log(`ran on ${on} in ${Math.round(seconds)} s; ${failures.length} failed`);
  return failures.length === 0 && behaviours.length > 0;
}

function failuresOf(column: Column, behaviours: readonly Behaviour[]): string[] {
  const { title, trouble } = column;
  const missing = behaviours.filter((behaviour) => !resultOf(column, behaviour));
  return [
    ...(trouble === undefined ? [] : [`${title}: ${trouble}`]),
    ...column.results
      .filter(({ state }) => state === 'fail')
      .map(({ scenario, error }) => `${keyOf(title, scenario)}\n${error}`),
    ...(missing.length === 0 || trouble !== undefined
      ? []
      : [`${title}: ${missing.length} behaviours did not run`]),
  ];
}
