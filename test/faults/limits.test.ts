import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Forkd, ForkdError } from '@forkd/sdk';
import { describe, expect, it } from 'vitest';
import { failureOf, fork, sh } from '../sandbox/support.js';
import { forkd } from '../support/cli.js';
import { faultHome, isRoot } from './home.js';

/** Where version 1 of control groups has its limit of processes; version 2 has it in each group. */
const pids = ['/sys/fs/cgroup/pids', '/sys/fs/cgroup'].find((dir) => {
  try {
    const probe = join(dir, `fk-probe-${process.pid}`);
    mkdirSync(probe);
    const limited = readFileSync(join(probe, 'pids.max'), 'utf8').trim() === 'max';
    rmdirSync(probe);
    return limited;
  } catch {
    return false;
  }
});

/** Why children of a fork did not start. Those that did are removed. */
async function failuresOf(client: Forkd, n: number): Promise<{ code: string; remedy: string }[]> {
  try {
    const { sandboxes, failures } = await client.fork({ snapshot: 'busybox', n });
    await Promise.all(sandboxes.map((box) => box.kill()));
    return failures.map(({ error }) => error);
  } catch (error) {
    if (!(error instanceof ForkdError)) throw error;
    const failures = error.details?.failures as { error: { code: string; remedy: string } }[] | undefined;
    return failures?.map((failure) => failure.error) ?? [{ code: error.code, remedy: error.remedy }];
  }
}

describe('a daemon that may open few files', () => {
  it('says so when a fork needs more, goes on for those it has, and has them back when one is removed', async () => {
    await using home = await faultHome();
    const { client } = home;
    await using first = await fork(1, {}, client);
    await home.settled();
    const open = readdirSync(`/proc/${home.pid}/fd`).length;
    // What a daemon keeps for its clients, and files for some children.
    execFileSync('prlimit', ['--pid', String(home.pid), `--nofile=${open + 48 + 24}`]);
    const boxes: Awaited<ReturnType<typeof client.fork>>['sandboxes'] = [];
    let error: {
      code?: string;
      details?: { failures?: { error: { code: string; remedy: string } }[]; requested?: number };
    } = {};
    for (let round = 0; round < 20 && error.code === undefined; round++) {
      try {
        boxes.push(...(await client.fork({ snapshot: 'busybox', n: 2 })).sandboxes);
      } catch (thrown) {
        error = thrown as typeof error;
      }
    }
    expect(boxes.length).toBeGreaterThan(1);
    const causes = error.details?.failures?.map((failure) => failure.error) ?? [error];
    for (const cause of causes) expect(cause).toMatchObject({ code: 'limit_reached' });
    for (const cause of causes) expect(cause).toMatchObject({ remedy: expect.stringContaining('ulimit -n') });
    // Nothing was started, and what is left suffices for many clients at once.
    expect(error).toMatchObject({ details: { requested: 2, files_each: 4 } });
    const clients = Array.from({ length: 12 }, () => new Forkd({ home: home.path }));
    for (const lists of await Promise.all(clients.map((one) => one.sandboxes.list())))
      expect(lists).toHaveLength(boxes.length + 1);
    await Promise.all(clients.map((one) => one.close()));
    // The daemon answers, and what it has runs.
    const [second, third] = boxes;
    if (!second || !third) throw new Error('two were made at least');
    expect(await client.sandboxes.list()).toHaveLength(boxes.length + 1);
    await second.kill();
    await third.kill();
    await using again = await fork(1, {}, client);
    expect(await sh(again.box, 'echo again')).toBe('again');
    for (const box of [first.box, ...boxes.slice(2)]) expect(await sh(box, 'echo fine')).toBe('fine');
    expect(home.leftovers().files.filter((name) => name.startsWith('run/sb-'))).toHaveLength(boxes.length);
  });
});

describe.runIf(isRoot && pids !== undefined)('a daemon that may start few processes', () => {
  /** A control group for the daemon and all that it starts. */
  function group() {
    const dir = join(pids ?? '', `fk-faults-${process.pid}`);
    mkdirSync(dir);
    return {
      // The shell joins it, and becomes the CLI.
      wrap: ['sh', '-c', `echo $$ > ${dir}/cgroup.procs && exec "$@"`, 'sh'],
      limit: (n: number | 'max') => writeFileSync(join(dir, 'pids.max'), String(n)),
      now: () => Number(readFileSync(join(dir, 'pids.current'), 'utf8')),
      [Symbol.dispose]: () => rmdirSync(dir),
    };
  }

  it('says so when a fork needs more, leaves nothing of it, and goes on for those it has', async () => {
    using limited = group();
    await using home = await faultHome({ wrap: limited.wrap });
    const { client } = home;
    await using children = await fork(2, {}, client);
    await home.settled();
    // None, then some: the shim, or a thread of the VMM, is the one that cannot be started.
    for (const more of [0, 1, 3]) {
      limited.limit(limited.now() + more);
      const causes = await failuresOf(client, 6);
      expect(causes.length).toBeGreaterThan(0);
      for (const cause of causes) {
        expect(cause).toMatchObject({ code: 'limit_reached' });
        expect(cause.remedy).toContain('pids.max');
      }
      limited.limit('max');
      expect(await client.sandboxes.list()).toHaveLength(2);
      const told = await forkd(['ls', '--json'], { env: { FORKD_HOME: home.path } });
      expect(told.code).toBe(0);
      for (const box of children.boxes) expect(await sh(box, 'echo fine')).toBe('fine');
      expect(home.leftovers().files.filter((name) => name.startsWith('run/sb-'))).toHaveLength(2);
    }
    await using again = await fork(1, {}, client);
    expect(await sh(again.box, 'echo again')).toBe('again');
  });

  it('branches without a thread of the shim fail, and the source runs on', async () => {
    using limited = group();
    await using home = await faultHome({ wrap: limited.wrap });
    await using children = await fork(1, {}, home.client);
    const { box } = children;
    await sh(box, 'echo kept > /dev/shm/x');
    await home.settled();
    limited.limit(limited.now());
    expect(await failureOf(box.branch({ tag: 'no-thread' }))).toMatchObject({ code: 'limit_reached' });
    limited.limit('max');
    expect(await box.info()).toMatchObject({ state: 'running' });
    expect(await sh(box, 'cat /dev/shm/x')).toBe('kept');
    const { id } = await box.branch({ tag: 'no-thread' });
    await children[Symbol.asyncDispose]();
    await home.client.snapshots.remove(id);
  });
});
