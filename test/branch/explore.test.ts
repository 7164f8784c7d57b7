import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ExploreResult } from '@forkd/sdk';
import { describe, expect, it } from 'vitest';
import { client, fork, sh } from '../sandbox/support.js';
import { forkd } from '../support/cli.js';
import { dropAllOf } from './support.js';

describe('explore', () => {
  it('runs a command in children of one sandbox, and keeps the one with the highest score', async () => {
    await using children = await fork();
    await sh(children.box, 'echo 10 > /dev/shm/base');
    const exploration = client().explore({
      from: children.box.id,
      each: [0, 1, 2].map((add) => ({ env: { ADD: String(add) }, stdin: `${add}\n` })),
      command: {
        shell: 'read line; echo $(($(cat /dev/shm/base) + ADD + line)) > /root/score; exit $((ADD == 2))',
      },
      score: ['cat', '/root/score'],
      keep: 'best',
    });
    const seen: ExploreResult[] = [];
    for await (const result of exploration) seen.push(result);
    expect(seen).toHaveLength(3);
    expect(exploration.results.map(({ state, exitCode, score }) => ({ state, exitCode, score }))).toEqual([
      { state: 'ok', exitCode: 0, score: 10 },
      { state: 'ok', exitCode: 0, score: 12 },
      { state: 'failed', exitCode: 1, score: undefined },
    ]);
    const [best] = exploration.kept;
    expect(best?.id).toBe(exploration.results[1]?.sandbox?.id);
    if (best !== undefined) expect(await sh(best, 'cat /root/score')).toBe('12');
    await best?.kill();
    await dropAllOf(children.box.id);
  });

  it('cancels the others at the first success, and leaves nothing', async () => {
    const exploration = client().explore({
      from: 'busybox',
      each: [{ env: { T: '0' } }, { env: { T: '600' } }],
      command: { shell: 'sleep $T' },
      firstSuccess: true,
    });
    const states: string[] = [];
    for await (const { state } of exploration) states.push(state);
    expect(states).toEqual(['ok', 'cancelled']);
    const mine = exploration.results.flatMap(({ sandbox }) => (sandbox ? [sandbox.id] : []));
    const left = (await client().sandboxes.list()).filter(({ id }) => mine.includes(id));
    expect(left).toEqual([]);
  });

  it('that is aborted removes its children', async () => {
    await using children = await fork();
    const { id } = await children.box.branch();
    const stop = new AbortController();
    const exploration = client().explore({
      from: id,
      n: 2,
      command: { shell: 'echo here; sleep 600' },
      keep: 'ok',
      onOutput: () => stop.abort(),
      signal: stop.signal,
    });
    const run = async () => {
      for await (const _ of exploration) expect.unreachable();
    };
    await expect(run()).rejects.toThrow();
    const boxes = await client().sandboxes.list();
    expect(boxes.filter(({ snapshot_id }) => snapshot_id === id)).toEqual([]);
    expect(exploration.kept).toEqual([]);
    await dropAllOf(children.box.id);
  });

  it('of the command line prefixes output, and ends with a table', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'forkd-each-'));
    try {
      const each = join(dir, 'each.jsonl');
      writeFileSync(each, '{"env":{"WORD":"a"},"stdin":"x"}\n{"env":{"WORD":"b"}}\n');
      const { code, stdout } = await forkd([
        'explore',
        'busybox',
        '--each',
        each,
        '--',
        'sh',
        '-c',
        'cat; echo " $WORD$FORKD_CHILD"; exit $FORKD_CHILD',
      ]);
      expect(code).toBe(0);
      expect(stdout).toContain('0 | x a0\n');
      expect(stdout).toContain('1 |  b1\n');
      expect(stdout).toMatch(/^CHILD +RESULT +EXIT +TIME +MEMORY +KEPT\n0 +ok +0 .*\n1 +failed +1 /m);
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  });
});
