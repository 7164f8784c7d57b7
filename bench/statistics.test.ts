import { expect, test } from 'vitest';
import { percentile, repeat, rowOf } from './statistics.js';

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
