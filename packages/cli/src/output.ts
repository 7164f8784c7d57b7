/** What goes to stdout and stderr, and how. */
import { styleText } from 'node:util';
import Table from 'cli-table3';

/** Where a command writes to. Answers go to stdout, notes and progress to stderr. */
export interface Output {
  readonly json: boolean;
  /** Writes an answer: as one JSON document, or as `people` renders it. */
  answer<T>(value: T, people: (value: T) => string): void;
  /** Writes a line for people; nothing when JSON was asked for. */
  note(line: string): void;
  /** Colours text where stdout can show it. */
  paint(style: Style, text: string): string;
}

export type Style = 'bold' | 'dim' | 'green' | 'yellow' | 'red';

/** Whether a stream shows colours: NO_COLOR and FORCE_COLOR first, then whether it is a terminal. */
export function hasColour(
  stream: { isTTY?: boolean },
  env: Readonly<Record<string, string | undefined>> = process.env,
): boolean {
  if (env.NO_COLOR) return false;
  if (env.FORCE_COLOR) return env.FORCE_COLOR !== '0';
  return stream.isTTY === true && env.TERM !== 'dumb';
}

export function makeOutput(json: boolean): Output {
  const colour = hasColour(process.stdout);
  return {
    json,
    answer(value, people) {
      const text = json ? JSON.stringify(value, null, 2) : people(value);
      if (text !== '') process.stdout.write(`${text}\n`);
    },
    note(line) {
      if (!json) process.stderr.write(`${line}\n`);
    },
    paint(style, text) {
      return colour ? styleText(style, text, { validateStream: false }) : text;
    },
  };
}

/**
 * A table without frames: columns two spaces apart, as `ps` has it, so that it can be read and cut.
 *
 * @param head titles; a title that starts with `>` has its column aligned to the right
 */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const none = '';
  const grid = new Table({
    head: head.map((title) => title.replace(/^>/, '')),
    colAligns: head.map((title) => (title.startsWith('>') ? 'right' : 'left')),
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 2 },
    chars: {
      top: none,
      'top-mid': none,
      'top-left': none,
      'top-right': none,
      bottom: none,
      'bottom-mid': none,
      'bottom-left': none,
      'bottom-right': none,
      left: none,
      'left-mid': none,
      mid: none,
      'mid-mid': none,
      right: none,
      'right-mid': none,
      middle: none,
    },
  });
  grid.push(...rows.map((row) => [...row]));
  return trimLines(grid.toString());
}

/** Two columns of names and values. */
export function facts(pairs: readonly (readonly [string, string | undefined])[]): string {
  const shown = pairs.filter((pair): pair is readonly [string, string] => pair[1] !== undefined);
  const width = Math.max(...shown.map(([name]) => name.length));
  return shown.map(([name, value]) => `${name.padEnd(width)}  ${value}`).join('\n');
}

function trimLines(text: string): string {
  return text
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n');
}
