import { expect, it } from 'vitest';
import { runScenarios } from './run.js';
import type { Result } from './table.js';
import type { Stage } from './types.js';

async function resultsOf(errors: (string | null)[], until = 1e9): Promise<Result[]> {
  const left = [...errors];
  const results: Result[] = [];
  const run = async () => {
    const error = left.shift();
    if (error) throw new Error(error);
  };
  await runScenarios([{ area: 'fork', name: 'one', run }], { slowness: 1 } as Stage, {
    until: performance.now() + until,
    say: () => undefined,
    begins: () => undefined,
    ends: (result) => results.push(result),
  });
  return results;
}

it('tries once more what has failed, and keeps what was wrong at first', async () => {
  expect(await resultsOf([null])).toMatchObject([{ state: 'pass' }]);
  expect((await resultsOf([null]))[0]).not.toHaveProperty('firstTry');
  expect(await resultsOf(['a', null])).toMatchObject([
    { state: 'pass', firstTry: expect.stringContaining('Error: a') },
  ]);
  expect(await resultsOf(['a', 'b', null])).toMatchObject([
    {
      state: 'fail',
      error: expect.stringContaining('Error: b'),
      firstTry: expect.stringContaining('Error: a'),
    },
  ]);
});

it('begins nothing once the time of the run is over', async () => {
  expect(await resultsOf(['a'], -1)).toMatchObject([{ state: 'late' }]);
});
