import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Sandbox } from '@forkd/sdk';
import { describe, expect, it } from 'vitest';
import { eventually } from '../support/wait.js';
import { type OwnHome, ownHome } from './home.js';
import { client, failureOf, fork, sh } from './support.js';

const stateDirectory = () => process.env.FORKD_HOME ?? '';
const exited = (box: Sandbox) =>
  eventually(async () => ((await box.info()).state === 'exited' ? box.lastInfo : undefined));

/** Pid of the shim of a sandbox: the parent of its VMM. */
function shimOf(vmmPid: number | null | undefined): number {
  const stat = readFileSync(`/proc/${vmmPid}/stat`, 'utf8');
  return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]);
}

describe('a sandbox whose VMM is killed', () => {
  it('has exited, with a reason; calls say so; it can be removed', async () => {
    await using children = await fork(2);
    const [box, sibling] = children.boxes;
    if (!box || !sibling) throw new Error('two are needed');
    const running = box.exec(['sleep', '1000'], { timeoutSecs: 60 });
    running.catch(() => undefined);
    process.kill(box.lastInfo?.pid ?? 0, 'SIGKILL');
    const info = await exited(box);
    expect(info?.exit).toMatchObject({ kind: 'signaled', signal: 'SIGKILL' });
    expect(info?.exit?.reason).toContain('SIGKILL');
    expect(info?.pid).toBeNull();
    expect(['sandbox_exited', 'guest_unreachable']).toContain((await failureOf(running)).code);
    for (const call of [
      () => box.exec(['true']),
      () => box.run(['true']),
      () => box.ping(),
      () => box.files.read('/etc/passwd'),
      () => box.files.write('/tmp/x', 'x'),
      () => box.processes(),
      () => box.metrics(),
    ]) {
      const error = await failureOf(call());
      expect(error).toMatchObject({ code: 'sandbox_exited', status: 409 });
      expect(error.message).toContain('SIGKILL');
      expect(error.remedy).toContain(box.id);
    }
    expect(await box.logs()).toHaveProperty('console');
    expect(await sh(sibling, 'echo alive')).toBe('alive');
    await box.kill();
    expect(await failureOf(box.info())).toMatchObject({ code: 'sandbox_not_found' });
    expect(existsSync(join(stateDirectory(), 'run', box.id))).toBe(false);
  });
});

describe('a sandbox', () => {
  it('that is stopped by a signal and goes on has lost nothing', async () => {
    await using children = await fork();
    const pid = children.box.lastInfo?.pid ?? 0;
    const command = children.box.exec({ shell: 'for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done' });
    process.kill(pid, 'SIGSTOP');
    await new Promise((resolve) => setTimeout(resolve, 1000));
    process.kill(pid, 'SIGCONT');
    expect((await command).stdout).toBe('1\n2\n3\n4\n5\n6\n');
  });

  it('is removed once, however many ask for it', async () => {
    await using children = await fork();
    const { box } = children;
    const pid = box.lastInfo?.pid;
    const results = await Promise.allSettled([box.kill(), box.kill(), box.kill()]);
    const failures = results.flatMap((result) => (result.status === 'rejected' ? [result.reason] : []));
    for (const failure of failures) expect(failure).toMatchObject({ code: 'sandbox_not_found' });
    expect(failures.length).toBeLessThan(3);
    expect(await failureOf(box.kill())).toMatchObject({ code: 'sandbox_not_found', status: 404 });
    expect(existsSync(`/proc/${pid}`)).toBe(false);
    expect(existsSync(join(stateDirectory(), 'run', box.id))).toBe(false);
  });

  it('is removed while commands run and files go in and out', async () => {
    await using children = await fork();
    const { box } = children;
    const calls = [
      box.exec(['sleep', '1000'], { timeoutSecs: 60 }),
      box.exec({ shell: 'yes' }, { timeoutSecs: 60 }),
      box.files.read('/dev/zero').catch((error: unknown) => Promise.reject(error)),
      box.files.write('/tmp/big', Buffer.alloc(30_000_000)),
    ];
    const settled = Promise.allSettled(calls);
    await sh(box, 'sleep 0.2');
    await box.kill();
    for (const result of await settled) expect(result.status).toBe('rejected');
    expect((await client().sandboxes.list()).some(({ id }) => id === box.id)).toBe(false);
  });

  it.each([
    ['powers off', 'poweroff -f'],
    ['reboots', 'reboot -f'],
    [
      'panics',
      'echo 1 > /proc/sys/kernel/sysrq; echo last-words > /dev/console; echo c > /proc/sysrq-trigger',
    ],
  ])('whose guest %s has exited, and leaves its last words', async (what, shell) => {
    await using children = await fork();
    const { box } = children;
    const call = box.exec({ shell }, { timeoutSecs: 30 });
    call.catch(() => undefined);
    const info = await exited(box);
    expect(info?.exit).toMatchObject({ kind: 'exited', code: 0 });
    expect(info?.exit?.reason).toContain('powered off');
    expect(await failureOf(box.exec(['true']))).toMatchObject({ code: 'sandbox_exited' });
    if (what === 'panics') expect((await box.logs()).console).toContain('last-words');
  });

  it('keeps its agent when everything in it is killed', async () => {
    await using children = await fork();
    const { box } = children;
    await box.exec({ shell: 'kill -9 -1; kill -9 1' }, { timeoutSecs: 10 }).catch(() => undefined);
    expect((await box.ping()).pong).toBe(true);
    expect(await sh(box, 'echo alive')).toBe('alive');
  });
});

describe('with a daemon of its own', () => {
  const inHome = (test: (home: OwnHome) => Promise<void>) => async () => {
    await using home = await ownHome();
    await test(home);
  };

  it(
    'a sandbox goes on when its shim is killed, and gets another',
    inHome(async (home) => {
      const { box } = await fork(1, {}, home.client);
      await sh(box, 'echo kept > /tmp/kept; sleep 5001 >/dev/null 2>&1 &');
      const pid = box.lastInfo?.pid;
      const shim = shimOf(pid);
      expect(readFileSync(`/proc/${shim}/comm`, 'utf8')).toMatch(/shim/);
      process.kill(shim, 'SIGKILL');
      expect(await sh(box, 'cat /tmp/kept; ps | grep -c "[s]leep 5001"')).toBe('kept\n1');
      expect(await box.info()).toMatchObject({ state: 'running', pid });
      // Whoever comes next finds it as well; how it ended is not known to the new shim.
      await home.crash();
      await home.start();
      const again = home.client.sandbox(box.id);
      expect(await sh(again, 'cat /tmp/kept')).toBe('kept');
      process.kill(pid ?? 0, 'SIGKILL');
      const info = await exited(again);
      expect(info?.exit?.code).not.toBe(0);
      await again.kill();
    }),
  );

  it(
    'sandboxes are adopted by the next daemon after one was killed, with all that runs in them',
    inHome(async (home) => {
      const { boxes } = await fork(3, { metadata: { task: 't' } }, home.client);
      const before = await Promise.all(boxes.map((box) => box.info()));
      for (const box of boxes) await sh(box, 'hostname > /tmp/kept; (sleep 5011 >/dev/null 2>&1 &)');
      const first = boxes[0];
      const kept = await first?.run(
        { shell: 'echo early; while [ ! -e /tmp/go ]; do usleep 50000; done; echo late' },
        { keep: true },
      );
      await home.crash();
      await home.start();
      const after = await home.client.sandboxes.list();
      expect(after.map(({ id }) => id).sort()).toEqual(before.map(({ id }) => id).sort());
      for (const info of before) {
        const found = after.find(({ id }) => id === info.id);
        expect(found).toMatchObject({
          state: 'running',
          pid: info.pid,
          hostname: info.hostname,
          generation: info.generation,
          metadata: { task: 't' },
        });
        const box = home.client.sandbox(info.id);
        expect(await sh(box, 'cat /tmp/kept; ps | grep -c "[s]leep 5011"')).toBe(`${info.hostname}\n1`);
      }
      // A process that was started through the daemon before goes on, and so does its output.
      const box = home.client.sandbox(first?.id ?? '');
      const process = await box.attach(kept?.handle ?? -1);
      process.stderr?.resume();
      await sh(box, 'touch /tmp/go');
      expect(Buffer.concat(await process.stdout.toArray()).toString()).toBe('early\nlate\n');
      expect(await process.wait()).toMatchObject({ exitCode: 0 });
      // New ones can be made beside them, and old ones removed.
      const { box: later } = await fork(1, {}, home.client);
      expect(await sh(later, 'echo new')).toBe('new');
      await box.kill();
      expect(await home.client.sandboxes.list()).toHaveLength(3);
    }),
  );

  it(
    'a VMM that ended while no daemon was there is found out, with the reason',
    inHome(async (home) => {
      const { boxes } = await fork(3, {}, home.client);
      const [killed, powered, alive] = boxes;
      const pids = [killed, powered, alive].map((box) => box?.lastInfo?.pid ?? 0);
      await powered?.exec({ shell: 'sleep 2 && poweroff -f &' });
      const shimOfKilled = shimOf(pids[0]);
      await home.crash();
      process.kill(pids[0] ?? 0, 'SIGKILL');
      await eventually(() => (existsSync(`/proc/${pids[0]}`) ? undefined : true));
      expect(existsSync(`/proc/${shimOfKilled}`)).toBe(true);
      await home.start();
      const info = await exited(home.client.sandbox(killed?.id ?? ''));
      expect(info?.exit).toMatchObject({ kind: 'signaled', signal: 'SIGKILL' });
      const off = await exited(home.client.sandbox(powered?.id ?? ''));
      expect(off?.exit).toMatchObject({ kind: 'exited', code: 0 });
      expect(await sh(home.client.sandbox(alive?.id ?? ''), 'echo alive')).toBe('alive');
    }),
  );

  it(
    'a fork during which the daemon was killed leaves nothing half made',
    inHome(async (home) => {
      const forking = home.client.fork({ snapshot: 'busybox', n: 16 });
      forking.catch(() => undefined);
      await eventually(async () => ((await home.client.sandboxes.list()).length > 2 ? true : undefined));
      await home.crash();
      await home.start();
      const list = await home.client.sandboxes.list();
      for (const info of list) {
        expect(info.state).toBe('running');
        expect(await sh(home.client.sandbox(info.id), 'echo whole')).toBe('whole');
      }
      const { readdirSync } = await import('node:fs');
      const directories = readdirSync(join(home.path, 'run')).filter((name) => name.startsWith('sb-'));
      expect(directories.sort()).toEqual(list.map(({ id }) => id).sort());
    }),
  );
});
