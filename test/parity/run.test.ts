import { expect, it } from 'vitest';
import { runScenarios } from './run.js';
import type { Result } from './table.js';
import type { Stage } from './types.js';

/** Each try goes wrong as said; with `lost` a guest is lost in it. */
async function resultsOf(
  errors: (string | null)[],
  { until = 1e9, emulated = false } = {},
): Promise<Result[]> {
  const left = [...errors];
  const results: Result[] = [];
  const stage = { slowness: 1, lostGuests: 0 };
  const run = async () => {
    const error = left.shift();
    if (error === 'lost') stage.lostGuests += 1;
    if (error) throw new Error(error);
  };
  await runScenarios([{ area: 'fork', name: 'one', run }], stage as Stage, {
    until: performance.now() + until,
    emulated,
    say: () => undefined,
    begins: () => undefined,
    ends: (result) => results.push(result),
  });
  return results;
}

it('tries once more what has failed, and keeps what was wrong at first', async () => {
  expect(await resultsOf([null])).toMatchObject([{ state: 'pass' }]);
  expect((await resultsOf([null]))[0]).not.toHaveProperty('firstTries');
  expect(await resultsOf(['a', null])).toMatchObject([
    { state: 'pass', firstTries: [expect.stringContaining('Error: a')] },
  ]);
  expect(await resultsOf(['a', 'b', null])).toMatchObject([
    {
      state: 'fail',
      error: expect.stringContaining('Error: b'),
      firstTries: [expect.stringContaining('Error: a')],
    },
  ]);
});

it('begins nothing once the time of the run is over', async () => {
  expect(await resultsOf(['a'], { until: -1 })).toMatchObject([{ state: 'late' }]);
});

it('tries up to four times what loses a guest each time, where hardware is emulated, and only that', async () => {
  const triesOf = async (errors: (string | null)[], emulated: boolean) => {
    const [result] = await resultsOf(errors, { emulated });
    return { state: result?.state, before: result?.firstTries?.length };
  };
  expect(await triesOf(['lost', 'lost', 'lost', null], true)).toEqual({ state: 'pass', before: 3 });
  expect(await triesOf(['lost', 'lost', 'lost', 'lost', null], true)).toEqual({ state: 'fail', before: 3 });
  expect(await triesOf(['lost', 'lost', null], false)).toEqual({ state: 'fail', before: 1 });
  expect(await triesOf(['lost', 'a', null], true)).toEqual({ state: 'fail', before: 1 });
  expect(await triesOf(['a', 'lost', null], true)).toEqual({ state: 'fail', before: 1 });
});
