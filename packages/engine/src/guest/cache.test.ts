import { mkdtemp, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { matchesStamp, stampOf } from './cache.js';

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'forkd-cache-'));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

describe('a stamped file', () => {
  it('matches by size and time alone, also where an archive has cut the time to whole seconds', async () => {
    const path = join(dir, 'file');
    await writeFile(path, 'x');
    await utimes(path, 1_700_000_000.25, 1_700_000_000.25);
    // No hash at all: it would not match.
    const stamp = { ...(await stampOf(path)), sha256: 'not looked at' };
    expect(await matchesStamp(path, stamp)).toBe(true);
    await utimes(path, 1_700_000_000, 1_700_000_000);
    expect(await matchesStamp(path, stamp)).toBe(true);
    await utimes(path, 1_700_000_001, 1_700_000_001);
    expect(await matchesStamp(path, stamp)).toBe(false);
  });

  it('is hashed where the time is another one', async () => {
    const path = join(dir, 'copied');
    await writeFile(path, 'x');
    const stamp = await stampOf(path);
    await utimes(path, 1, 1);
    expect((await stat(path)).mtimeMs).toBe(1000);
    expect(await matchesStamp(path, stamp)).toBe(true);
    await writeFile(path, 'y');
    await utimes(path, 1, 1);
    expect(await matchesStamp(path, stamp)).toBe(false);
  });
});
