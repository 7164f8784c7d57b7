import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../support/wait.js';
import { type Children, failureOf, fork, sh } from './support.js';

let children: Children;
beforeAll(async () => {
  children = await fork();
});
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
});
const exec = (shell: string, timeoutSecs?: number) => children.box.exec({ shell }, { timeoutSecs });

/** Resolves when no process of the guest has `text` in its command line. */
async function noneLeft(text: string): Promise<void> {
  const pattern = `[${text[0]}]${text.slice(1)}`;
  await eventually(async () =>
    (await sh(children.box, `ps | grep -c '${pattern}' || true`)) === '0' ? true : undefined,
  );
}

describe('how a command ended is told', () => {
  it.each([
    ['exit 0', { kind: 'exited', code: 0 }, 0],
    ['exit 255', { kind: 'exited', code: 255 }, 255],
    ['kill -TERM $$', { kind: 'signaled', signal: 'SIGTERM' }, 143],
    ['kill -SEGV $$', { kind: 'signaled', signal: 'SIGSEGV' }, 139],
    ['kill -KILL $$', { kind: 'signaled', signal: 'SIGKILL' }, 137],
  ])('%s', async (shell, outcome, code) => {
    expect(await exec(shell)).toMatchObject({ outcome, exit_code: code });
  });

  it('with the output of before, for each of them', async () => {
    for (const end of ['exit 3', 'kill -KILL $$', 'sleep 1000']) {
      const result = await exec(`echo out; echo err >&2; ${end}`, 2);
      expect(result).toMatchObject({ stdout: 'out\n', stderr: 'err\n' });
    }
  });

  it('when its time is over: it and all it has started are gone, in other sessions too', async () => {
    const began = performance.now();
    const result = await exec(
      'setsid sleep 7001 & (setsid sh -c "setsid sleep 7002; true" &) ; nohup sleep 7003 >/dev/null 2>&1 & sleep 7004',
      1,
    );
    expect(result).toMatchObject({ outcome: { kind: 'timeout' }, exit_code: 124 });
    expect(performance.now() - began).toBeLessThan(10_000);
    await noneLeft('sleep 700');
  });

  it('when its time is over though it ignores every signal that can be ignored', async () => {
    const result = await exec('trap "" HUP INT TERM QUIT USR1; while :; do sleep 7011; done', 1);
    expect(result).toMatchObject({ outcome: { kind: 'timeout' }, exit_code: 124 });
    await noneLeft('sleep 7011');
  });

  it('a port that it held is free after its time is over', async () => {
    const hold = 'ip link set lo up; setsid nc -l -p 9191 127.0.0.1 & sleep 1000';
    for (let i = 0; i < 2; i += 1) expect(await exec(hold, 1)).toMatchObject({ exit_code: 124 });
    const result = await exec('nc -l -p 9191 127.0.0.1 & usleep 300000; kill %1 && echo was-listening', 10);
    expect(result.stdout).toBe('was-listening\n');
  });

  it('when the guest was out of memory', async () => {
    // Each takes less than the machine has, all of them more.
    const hog = 'dd if=/dev/zero of=/dev/null bs=40M count=10000';
    const result = await exec(`${hog} & ${hog} & ${hog} & wait; sleep 1000`, 30);
    expect(result).toMatchObject({ outcome: { kind: 'oom' }, exit_code: 137 });
    expect(await sh(children.box, 'echo fine')).toBe('fine');
  });

  it('when its caller went away: it is killed', async () => {
    const gone = new AbortController();
    const call = children.box.exec({ shell: 'setsid sleep 7021 & exec sleep 7022' }, { signal: gone.signal });
    call.catch(() => undefined);
    await eventually(async () =>
      (await sh(children.box, 'ps | grep -c "[s]leep 702" || true')) === '2' ? true : undefined,
    );
    gone.abort();
    expect(await failureOf(call)).toMatchObject({ code: 'cancelled' });
    await noneLeft('sleep 702');
  });

  it('when its streaming caller went away: it is killed, unless it was to be kept', async () => {
    const run = await children.box.run({ shell: 'setsid sleep 7031 & exec sleep 7032' });
    const kept = await children.box.run(['sleep', '7041'], { keep: true });
    run.close();
    kept.close();
    await noneLeft('sleep 703');
    expect(await sh(children.box, 'ps | grep -c "[s]leep 7041"')).toBe('1');
    const again = await children.box.attach(kept.handle);
    again.signal('SIGTERM');
    expect(await again.wait()).toMatchObject({ outcome: { kind: 'signaled', signal: 'SIGTERM' } });
  });
});

describe('the end of a command', () => {
  it('is that of its main process, though a descendant holds the pipes', async () => {
    const began = performance.now();
    const result = await exec('sleep 7051 & echo started; exit 4');
    expect(result).toMatchObject({ exit_code: 4, stdout: 'started\n' });
    expect(performance.now() - began).toBeLessThan(5000);
    // A service that was started so goes on.
    expect(await sh(children.box, 'ps | grep -c "[s]leep 7051"; killall sleep')).toBe('1');
  });

  it('comes with all that was written before, however late', async () => {
    for (let i = 0; i < 10; i += 1) {
      const result = await exec('head -c 300000 /dev/zero | tr "\\0" x; echo end');
      expect(result.stdout.length).toBe(300_004);
      expect(result.stdout.endsWith('xend\n')).toBe(true);
    }
  });

  it('leaves no zombie, whoever the parent was', async () => {
    await exec('for i in 1 2 3 4 5; do (sh -c "sleep 0.1 & exec true" &) ; done; (sleep 0.2 &) ; true');
    await eventually(async () =>
      (await sh(children.box, 'cat /proc/[0-9]*/stat 2>/dev/null | grep -c ") Z " || true')) === '0'
        ? true
        : undefined,
    );
  });
});
