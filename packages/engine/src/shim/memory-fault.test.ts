import { mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { endedError } from '../vmm/ended.js';
import { explainExit } from './memory-fault.js';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'forkd-bus-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const sigbus = { kind: 'signaled', signal: 'SIGBUS', lastWords: '' } as const;

describe('an end by SIGBUS', () => {
  it('is told as a file that was cut short in place, with both sizes', async () => {
    const path = join(dir, 'memory');
    await writeFile(path, Buffer.alloc(8192));
    await truncate(path, 4096);
    const error = endedError(await explainExit(sigbus, [{ path, bytes: 8192n }]));
    expect(error.code).toBe('snapshot_corrupt');
    expect(error.message).toContain(`${path} was cut short in place: it has 4096 bytes, 8192 were mapped`);
    expect(error.remedy).toContain('build its template again');
  });

  it('is told as a full disk where that has no room, whatever the file', async () => {
    // Of /proc no block is ever free, as of a disk that is full.
    const path = '/proc/version';
    const error = endedError(await explainExit(sigbus, [{ path, bytes: 0n }]));
    expect(error).toMatchObject({ code: 'insufficient_disk' });
    expect(error.message).toContain(path);
    expect(error.remedy).toContain('Free space there');
  });

  it('is told as what it is where neither is seen: no disk is blamed', async () => {
    const path = join(dir, 'memory');
    await writeFile(path, Buffer.alloc(4096));
    for (const mapped of [[{ path, bytes: 4096n }], [{ path: join(dir, 'removed'), bytes: 1n }], []]) {
      const error = endedError(await explainExit(sigbus, mapped));
      expect(error).toMatchObject({ code: 'vmm_failed', details: { exit: { signal: 'SIGBUS' } } });
      expect(error.message).toMatch(/SIGBUS: a page of .* could not be had/);
      expect(error.remedy).toContain('dmesg');
    }
  });

  it('is looked into once; other ends are left as they are', async () => {
    const explained = await explainExit(sigbus, []);
    expect(await explainExit(explained, [{ path: '/proc/version', bytes: 0n }])).toBe(explained);
    const killed = { ...sigbus, signal: 'SIGKILL' } as const;
    expect(await explainExit(killed, [{ path: '/proc/version', bytes: 0n }])).toBe(killed);
  });
});
