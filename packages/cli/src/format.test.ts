import { describe, expect, it } from 'vitest';
import { age, bytes, duration, oneLine } from './format.js';

describe('format', () => {
  it('says sizes in the unit that keeps them short', () => {
    expect([0, 1023, 1024, 16_800_000, 5 * 1024 ** 3].map(bytes)).toEqual([
      '0 B',
      '1023 B',
      '1.0 KiB',
      '16 MiB',
      '5.0 GiB',
    ]);
    expect(bytes(undefined)).toBe('-');
    expect([9.97 * 1024, 1024 ** 2 - 1].map(bytes)).toEqual(['10 KiB', '1.0 MiB']);
  });

  it('says times in the unit that keeps them short', () => {
    expect([0.31, 29.4, 999, 4312, 61_000].map(duration)).toEqual([
      '0.3 ms',
      '29 ms',
      '999 ms',
      '4.3 s',
      '1 min 1 s',
    ]);
  });

  it('rounds into the next unit: there is no "60.0 s", and no "1 min 60 s"', () => {
    expect([9.97, 999.7, 59_960, 119_700].map(duration)).toEqual([
      '10 ms',
      '1.0 s',
      '1 min 0 s',
      '2 min 0 s',
    ]);
  });

  it('never shows a negative age when clocks disagree', () => {
    expect(age(110, 100)).toBe('0 s ago');
    expect(age(0, 90)).toBe('1 min ago');
    expect(age(0, 200_000)).toBe('2 d ago');
  });

  it('defuses control characters', () => {
    expect(oneLine('a\nb\t c')).toBe('a b c');
    expect(oneLine('\u001b[31mred\u0007')).toBe('\ufffd[31mred\ufffd');
  });
});
