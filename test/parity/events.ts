/** What the suite tells of itself, line by line, to a program that may lose the machine that it runs in. */
import type { Column, Result } from './table.js';
import type { Scenario } from './types.js';

/** Area and name of a behaviour. */
export type Behaviour = Pick<Scenario, 'area' | 'name'>;

/** `title` is that of a column, such as `qemu+kvm`. */
export type SuiteEvent =
  /** All that is to be shown on each column. First of all. */
  | { type: 'chosen'; behaviours: Behaviour[] }
  /** A daemon with a template is there. */
  | ({ type: 'column' } & Pick<Column, 'title' | 'engine' | 'version' | 'slowness'>)
  | { type: 'begin'; title: string; behaviour: Behaviour }
  | { type: 'end'; title: string; result: Result }
  /** See `Column.trouble`. */
  | { type: 'trouble'; title: string; text: string };

/** What such a line begins with, after which comes JSON. */
const MARK = '@parity ';

export function eventLine(event: SuiteEvent): string {
  return `${MARK}${JSON.stringify(event)}`;
}

/** The event of a line; null where it is ordinary output, or an event that was cut off. */
export function eventOf(line: string): SuiteEvent | null {
  if (!line.startsWith(MARK)) return null;
  try {
    return JSON.parse(line.slice(MARK.length)) as SuiteEvent;
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

/** One behaviour on one column, as `--except` takes it. */
export function keyOf(title: string, { area, name }: Behaviour): string {
  return `${title}: ${area}: ${name}`;
}
