import { describe, expect, it } from 'vitest';
import { facts, hasColour, table } from './output.js';

describe('tables', () => {
  it('have no frames and no blanks at line ends', () => {
    expect(
      table(
        ['ID', '>SIZE'],
        [
          ['a', '12'],
          ['long', '5'],
        ],
      ),
    ).toBe('ID    SIZE\na       12\nlong     5');
  });

  it('show their head when there are no rows', () => {
    expect(table(['ID', 'STATE'], [])).toBe('ID  STATE');
  });

  it('leave out facts that are not known', () => {
    expect(
      facts([
        ['id', 'x'],
        ['tag', undefined],
        ['state', 'ready'],
      ]),
    ).toBe('id     x\nstate  ready');
  });
});

describe('colour', () => {
  const terminal = { isTTY: true };
  it('is for terminals only', () => {
    expect(hasColour(terminal, {})).toBe(true);
    expect(hasColour({}, {})).toBe(false);
    expect(hasColour(terminal, { TERM: 'dumb' })).toBe(false);
  });
  it('obeys NO_COLOR before FORCE_COLOR', () => {
    expect(hasColour(terminal, { NO_COLOR: '1', FORCE_COLOR: '1' })).toBe(false);
    expect(hasColour({}, { FORCE_COLOR: '1' })).toBe(true);
    expect(hasColour(terminal, { NO_COLOR: '' })).toBe(true);
  });
});
