import type { SandboxInfo } from '@forkd/api';
import { describe, expect, it } from 'vitest';
import { forkd, forkdJson } from '../support/cli.js';
import { fork } from '../support/sandboxes.js';

describe('forkd fork', () => {
  it('starts children that differ in id, generation, host name and random numbers', async () => {
    await using boxes = await fork(3);
    const infos = await Promise.all(boxes.ids.map((id) => forkdJson<SandboxInfo>(['show', id])));
    const randoms = await Promise.all(
      boxes.ids.map((id) => forkd(['exec', id, 'od', '-An', '-N16', '-tx1', '/dev/urandom'])),
    );
    for (const values of [
      boxes.ids,
      infos.map((info) => info.generation),
      infos.map((info) => info.hostname),
      randoms.map((random) => random.stdout),
    ]) {
      expect(new Set(values).size).toBe(3);
    }
    expect(infos.map((info) => info.state)).toEqual(['running', 'running', 'running']);
  });

  it('passes environment, metadata and host names on', async () => {
    await using boxes = await fork(2, [
      '-e',
      'GREETING=hello world',
      '--meta',
      'task=t1',
      '--hostname',
      'web',
    ]);
    const { stdout } = await forkd(['exec', boxes.id, 'sh', '-c', 'echo "$GREETING from $(hostname)"']);
    expect(stdout).toBe('hello world from web-0\n');
    const info = await forkdJson<SandboxInfo>(['show', boxes.ids[1] ?? '']);
    expect(info).toMatchObject({ hostname: 'web-1', metadata: { task: 't1' } });
  });

  it('sets the wall clock of a child', async () => {
    await using box = await fork();
    const { stdout } = await forkd(['exec', box.id, 'date', '+%s']);
    expect(Math.abs(Number(stdout) - Date.now() / 1000)).toBeLessThan(5);
  });

  it('lists and removes sandboxes; removing one that is gone says so', async () => {
    await using boxes = await fork(2);
    const [first = '', second = ''] = boxes.ids;
    const listed = (await forkd(['ls', '-q'])).stdout.split('\n');
    expect(listed).toEqual(expect.arrayContaining([first, second]));
    expect(await forkd(['rm', first])).toMatchObject({ code: 0, stdout: `${first}\n` });
    const again = await forkd(['rm', first, second]);
    expect(again).toMatchObject({ code: 66, stdout: `${second}\n` });
    expect(again.stderr).toContain(`error: there is no sandbox ${first}`);
  });

  it('gives each child a disk of its own', async () => {
    await using boxes = await fork(2);
    const [first = '', second = ''] = boxes.ids;
    await forkd(['exec', first, 'sh', '-c', 'echo mine > /root/file && sync']);
    expect(await forkd(['exec', second, 'cat', '/root/file'])).toMatchObject({ code: 1 });
    expect((await forkd(['exec', first, 'cat', '/root/file'])).stdout).toBe('mine\n');
  });
});
