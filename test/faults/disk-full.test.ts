import { randomBytes } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { BuildEvent } from '@forkd/api';
import type { Forkd } from '@forkd/sdk';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { failureOf, fork, sh } from '../sandbox/support.js';
import { fill } from '../support/full-disk.js';
import { eventually } from '../support/wait.js';
import { canMount, type FaultHome, faultHome } from './home.js';

const MiB = 1024 * 1024;

/** What a build tells, to its end. */
async function built(
  home: FaultHome,
  yaml: string,
  onEvent: (event: BuildEvent) => void = () => {},
): Promise<BuildEvent[]> {
  const events: BuildEvent[] = [];
  for await (const event of home.client.templates.build({ yaml }, { tag: 'large' })) {
    events.push(event);
    onEvent(event);
  }
  return events;
}

const inside = (home: FaultHome) => ({
  run: readdirSync(join(home.path, 'run')).filter((name) => name.startsWith('sb-')),
  snapshots: readdirSync(join(home.path, 'snapshots')).sort(),
});

describe.runIf(canMount)('while the disk is full', () => {
  let home: FaultHome;
  let client: Forkd;
  beforeAll(async () => {
    home = await faultHome({ sizeMib: 176 });
    ({ client } = home);
  });
  afterAll(async () => {
    await home[Symbol.asyncDispose]();
  });

  it('a fork is refused, says which disk, and leaves nothing; what runs is not touched', async () => {
    await using children = await fork(1, {}, client);
    const before = inside(home);
    {
      using _full = fill(home.path);
      const error = await failureOf(client.fork({ snapshot: 'busybox', n: 3 }));
      expect(error).toMatchObject({ code: 'insufficient_disk', status: 507 });
      expect(error.message).toContain(home.path);
      expect(error.remedy).toMatch(/[Ff]ree/);
      expect(inside(home)).toEqual(before);
      expect(await client.sandboxes.list()).toMatchObject([{ id: children.box.id, state: 'running' }]);
      expect(await sh(children.box, 'echo still here')).toBe('still here');
    }
    await using again = await fork(2, {}, client);
    expect(await sh(again.box, 'echo again')).toBe('again');
  });

  it.each(['live', 'diff'] as const)(
    'a branch in mode %s fails with that reason; its source runs on',
    async (mode) => {
      await using children = await fork(1, {}, client);
      const { box } = children;
      await box.files.write('/dev/shm/x', randomBytes(16 * MiB));
      await sh(box, 'echo kept > /root/kept; sync; md5sum < /dev/shm/x > /dev/shm/sum');
      const before = inside(home);
      {
        // The overlay, the state and the beginning of the layer fit.
        using _full = fill(home.path, 4 * MiB);
        const error = await failureOf(box.branch({ mode, tag: 'too-large' }));
        expect(error).toMatchObject({ code: 'insufficient_disk', status: 507 });
        expect(error.message).toContain(home.path);
        expect(error.remedy).toContain('FORKD_HOME');
        expect(inside(home)).toEqual(before);
        expect(await box.info()).toMatchObject({ state: 'running' });
        expect(await sh(box, 'md5sum < /dev/shm/x | diff - /dev/shm/sum && echo same')).toBe('same');
      }
      // The tag is free again, and the next branch has it all.
      const { id } = await box.branch({ mode, tag: 'too-large' });
      {
        await using grandchildren = await fork(1, { snapshot: 'too-large' }, client);
        const text = 'md5sum < /dev/shm/x | diff - /dev/shm/sum && cat /root/kept';
        expect(await sh(grandchildren.box, text)).toBe('kept');
      }
      await client.snapshots.remove(id);
    },
  );

  it('a branch that nobody waits for is told as failed, with the reason', async () => {
    await using children = await fork(1, {}, client);
    const { box } = children;
    await box.files.write('/dev/shm/x', randomBytes(16 * MiB));
    using _full = fill(home.path, 4 * MiB);
    const { id } = await box.branch({ wait: false });
    const info = await eventually(async () => {
      const found = (await client.snapshots.list()).find((one) => one.id === id);
      return found?.status === 'writing' ? undefined : found;
    }, 30_000);
    expect(info).toMatchObject({ status: 'failed', bootable: false });
    expect(info.warning).toMatch(/space/);
    expect(await failureOf(client.fork({ snapshot: id }))).toMatchObject({ code: 'snapshot_not_ready' });
    expect(await sh(box, 'echo fine')).toBe('fine');
    expect(existsSync(join(home.path, 'snapshots', id))).toBe(false);
    await client.snapshots.remove(id);
  });

  it('a branch to the last byte fails as well', async () => {
    await using children = await fork(1, {}, client);
    const before = inside(home);
    // Each time another step is the first that fails: the journal, the directory, the overlay, the layer, the state.
    for (const bytes of [0, 4096, 16_384, 65_536, 196_608, 393_216]) {
      using _full = fill(home.path, bytes);
      const error = await failureOf(children.box.branch({ tag: 'none-at-all' }));
      expect(error).toMatchObject({ code: 'insufficient_disk' });
      expect(inside(home)).toEqual(before);
      expect(await sh(children.box, 'echo fine')).toBe('fine');
    }
    const { id } = await children.box.branch({ tag: 'none-at-all' });
    {
      await using grandchildren = await fork(1, { snapshot: id }, client);
      expect(await sh(grandchildren.box, 'echo fine')).toBe('fine');
    }
    await client.snapshots.remove(id);
  });

  it('sandboxes and snapshots can be removed, which makes room', async () => {
    await using children = await fork(2, {}, client);
    const [first, second] = children.boxes;
    if (!first || !second) throw new Error('two were asked for');
    await first.files.write('/dev/shm/x', randomBytes(4 * MiB));
    const { id } = await first.branch({ tag: 'to-be-removed' });
    {
      using _full = fill(home.path);
      await second.kill();
      await client.snapshots.remove('to-be-removed');
      expect((await client.snapshots.list()).map((one) => one.id)).not.toContain(id);
      expect(existsSync(join(home.path, 'snapshots', id))).toBe(false);
    }
    // What was forgotten stays so for the next daemon.
    await home.end('SIGKILL');
    await home.start();
    expect((await client.snapshots.list()).map((one) => one.tag)).toEqual(['busybox']);
    expect((await client.sandboxes.list()).map((one) => one.id)).toEqual([first.id]);
  });

  it('a guest that writes to its disk is told of an error; its siblings and the daemon are not', async () => {
    await using children = await fork(2, {}, client);
    const [writer, sibling] = children.boxes;
    if (!writer || !sibling) throw new Error('two were asked for');
    {
      using _full = fill(home.path);
      const result = await writer.exec({
        shell: 'dd if=/dev/urandom of=/root/big bs=1M count=24 conv=fsync 2>&1',
      });
      expect(result.outcome).toMatchObject({ kind: 'exited' });
      expect(result.exit_code).not.toBe(0);
      expect(result.stdout).toMatch(/I\/O error|Input\/output error|No space|Read-only/);
      expect(await writer.info()).toMatchObject({ state: 'running' });
      expect(await sh(writer, 'echo alive')).toBe('alive');
      expect(await sh(sibling, 'echo alive')).toBe('alive');
    }
    expect(
      await sh(sibling, 'dd if=/dev/zero of=/root/big bs=1M count=4 conv=fsync 2>/dev/null; echo $?'),
    ).toBe('0');
  });

  it.each(['SIGKILL', 'SIGTERM'] as const)(
    'a daemon that ended by %s starts again and takes over what lives',
    async (signal) => {
      await using children = await fork(1, {}, client);
      const { pid, generation } = await children.box.info();
      {
        using _full = fill(home.path);
        await home.end(signal);
        await home.start();
        expect(await children.box.info()).toMatchObject({ state: 'running', pid, generation });
        expect(await sh(children.box, 'echo still here')).toBe('still here');
      }
      await using more = await fork(1, {}, client);
      expect(await sh(more.box, 'echo new')).toBe('new');
    },
  );
});

const verdicts = (home: FaultHome): string[] =>
  readdirSync(join(home.path, 'cache'))
    .filter((name) => name.startsWith('verdict-'))
    .map((name) => join(home.path, 'cache', name));

it.runIf(canMount).each(['known', 'still to be found out'])(
  'a build on a disk that is too small says so, and leaves nothing half made: what the host can run is %s',
  async (what) => {
    await using home = await faultHome({ sizeMib: 110 });
    if (what !== 'known') for (const path of verdicts(home)) rmSync(path);
    const before = inside(home);
    const events = await built(home, 'base: busybox\nmemory: 192M\n');
    expect(events.at(-1)).toMatchObject({ type: 'failed', error: { code: 'insufficient_disk' } });
    expect(inside(home)).toEqual(before);
    // A host that could not even try is not unfit until its next boot.
    for (const path of verdicts(home)) expect(readFileSync(path, 'utf8')).not.toMatch(/space|disk/);
  },
);

it.runIf(canMount)(
  'a build whose machine finds no room for its memory says which file, and where',
  async () => {
    // Room for what a build asks for at its start; it is taken away under the machine.
    await using home = await faultHome({ sizeMib: 900 });
    const before = inside(home);
    const filler = join(home.path, 'filler');
    const script =
      'echo here; sleep 3; i=0; while [ $i -lt 60 ]; do dd if=/dev/zero of=/dev/shm/$i bs=1M count=1; i=$((i + 1)); done';
    const yaml = `base: busybox\nmemory: 192M\ndisk: 64M\nsetup: ['${script}']\n`;
    const events = await built(home, yaml, (event) => {
      if (event.type === 'log' && event.step === 'setup-1' && !existsSync(filler)) fill(home.path);
    });
    const last = events.at(-1);
    expect(last).toMatchObject({ type: 'failed', error: { code: 'insufficient_disk' } });
    if (last?.type !== 'failed') throw new Error('it has failed');
    expect(last.error.error).toMatch(/SIGBUS: a page of its memory file .*\/builds\/.*memory found no room/);
    expect(last.error.remedy).toContain('FORKD_HOME');
    rmSync(filler);
    expect(inside(home)).toEqual(before);
  },
);
