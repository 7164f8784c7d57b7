import { describe, expect, it } from 'vitest';
import { reserveFiles, spareFiles } from './open-files.js';

describe('open files of the daemon', () => {
  it('are refused beyond what the limit leaves, with the numbers', async () => {
    const { spare, limit } = await spareFiles();
    const n = Math.floor(spare / 4) + 50;
    const refused = await reserveFiles(n).then(
      () => undefined,
      (error: unknown) => error,
    );
    expect(refused).toMatchObject({
      code: 'limit_reached',
      message: expect.stringContaining(`of its ${limit} can be used`),
      remedy: expect.stringContaining('ulimit -n'),
      details: { requested: n, files_each: 4 },
    });
  });

  it('of children that start count until they run or have failed', async () => {
    const before = await spareFiles();
    {
      using _held = await reserveFiles(10);
      expect((await spareFiles()).spare).toBeLessThan(before.spare - 20);
    }
    expect((await spareFiles()).spare).toBeGreaterThan(before.spare - 20);
  });
});
