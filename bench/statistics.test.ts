import { expect, test } from 'vitest';
import { percentile, repeat, rowOf, rowWithin } from './statistics.js';

test('percentiles are values that were measured, by the nearest rank', () => {
  const values = [5, 1, 4, 2, 3];
  expect([0, 0.2, 0.5, 0.9, 1].map((share) => percentile(values, share))).toEqual([1, 1, 3, 5, 5]);
  expect(percentile([], 0.5)).toBeNull();
});

test('warm-up is dropped, failures are counted and told', async () => {
  const series = await repeat(4, 2, async (index) => {
    if (index === 1) throw new Error('broken');
    return index;
  });
  expect(rowOf('row', 'ms', series)).toMatchObject({
    n: 4,
    ok: 3,
    failed: 1,
    p50: 2,
    note: 'first failure: broken',
  });
});

test('a series ends when its time is over, with three values at least', async () => {
  expect((await repeat(10, 1, async (index) => index, -1)).values).toEqual([0, 1, 2]);
});

test('a row that fails, or takes too long, is a row that says so', async () => {
  const broken = await rowWithin('row', 'ms', 1000, async () => {
    throw new Error('broken');
  });
  expect(broken).toMatchObject({ name: 'row', failed: 1, p50: null, note: 'first failure: broken' });
  expect(await rowWithin('row', 'ms', 1, () => new Promise(() => undefined))).toMatchObject({
    note: 'first failure: not measured within 0.001 s',
  });
});
