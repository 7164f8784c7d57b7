import { type Behaviour, keyOf } from './events.js';
import { type Column, resultOf, table } from './table.js';

/**
 * Prints one table of results, what has failed, and what ran.
 *
 * @param behaviours all that were to be shown on each column; none where nobody could say
 * @param seconds how long it took
 * @param lateIsRed whether a behaviour for which no time was left counts as failed; else most of them must have been judged
 * @returns whether all behaviours hold on all columns
 */
export function report(
  columns: readonly Column[],
  behaviours: readonly Behaviour[],
  seconds: number,
  lateIsRed = true,
): boolean {
  console.log(`\n${behaviours.length === 0 ? 'nothing ran' : table(columns, behaviours)}`);
  for (const { title, results } of columns)
    for (const { scenario, firstTries = [] } of results)
      if (firstTries.length > 0)
        console.log(
          `\n* tried ${firstTries.length + 1} times: ${keyOf(title, scenario)}; before: ${firstTries.join('\n')}`,
        );
  const failures = columns.flatMap((column) => failuresOf(column, behaviours, lateIsRed));
  for (const text of failures) console.log(`\nFAILED on ${text}`);
  for (const { title, engine, version, slowness } of columns)
    if (engine !== '')
      console.log(`${title}: ${engine} ${version}, ${slowness.toFixed(1)} x slower than an ordinary host`);
  const on = columns.map(({ title }) => title).join(', ');
  console.log(`ran on ${on} in ${Math.round(seconds)} s; ${failures.length} failed`);
  return failures.length === 0 && behaviours.length > 0;
}

function failuresOf(column: Column, behaviours: readonly Behaviour[], lateIsRed: boolean): string[] {
  const { title, trouble } = column;
  const late = column.results.filter(({ state }) => state === 'late').length;
  const missing = behaviours.filter((behaviour) => !resultOf(column, behaviour));
  const tooLate = lateIsRed ? late > 0 : late > behaviours.length / 2;
  if (late > 0) console.log(`\n${title}: no time was left for ${late} of ${behaviours.length} behaviours`);
  return [
    ...(tooLate ? [`${title}: ${late} behaviours for which no time was left`] : []),
    ...(trouble === undefined ? [] : [`${title}: ${trouble}`]),
    ...column.results
      .filter(({ state }) => state === 'fail')
      .map(({ scenario, error }) => `${keyOf(title, scenario)}\n${error}`),
    ...(missing.length === 0 || trouble !== undefined
      ? []
      : [`${title}: ${missing.length} behaviours did not run`]),
  ];
}
