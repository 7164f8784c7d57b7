import { execFileSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { fork, sh } from '../sandbox/support.js';
import { forkd } from '../support/cli.js';
import { faultHome } from './home.js';

/** A clock that belongs to the daemon alone: this machine's is left as it is. */
let dir: string;
const library = () => join(dir, 'clock.so');
const offset = () => join(dir, 'offset');

/** Sets the daemon's clock, seconds from the right time; at once, while it runs. */
function set(seconds: number): void {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64LE(BigInt(seconds));
  const fd = openSync(offset(), 'r+');
  writeSync(fd, bytes, 0, bytes.length, 0);
  closeSync(fd);
}

beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'fk-clock-'));
  const source = fileURLToPath(new URL('./clock.c', import.meta.url));
  const flags = ['-std=c11', '-O1', '-Wall', '-Wextra', '-Werror', '-shared', '-fPIC'];
  execFileSync('gcc', [...flags, '-o', library(), source, '-ldl']);
  writeFileSync(offset(), Buffer.alloc(8));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const HOUR = 3600;
const now = () => Date.now() / 1000;

it('a clock that is set back by a day under a daemon that runs, and stays so over its restart, breaks nothing', async () => {
  set(0);
  const env = { LD_PRELOAD: library(), FORKD_TEST_CLOCK: offset() };
  await using home = await faultHome({ env });
  const { client } = home;
  await using children = await fork(1, {}, client);
  const { box } = children;
  await sh(box, 'echo kept > /root/kept; sync');
  const first = await box.branch({ tag: 'before' });
  const started = box.exec({ shell: 'sleep 2; echo slept' });

  set(-24 * HOUR);
  // What was under way, and what has a deadline, goes by a clock that does not step.
  expect(await started).toMatchObject({ exit_code: 0, stdout: 'slept\n' });
  expect(await box.exec({ shell: 'sleep 100' }, { timeoutSecs: 1 })).toMatchObject({
    outcome: { kind: 'timeout' },
  });
  expect(await sh(box, 'cat /root/kept')).toBe('kept');
  {
    // A new child has the daemon's time, be it wrong; one that runs is not moved.
    await using more = await fork(1, {}, client);
    const seen = Number(await sh(more.box, 'date +%s'));
    expect(Math.abs(seen - (now() - 24 * HOUR))).toBeLessThan(30);
    expect(Math.abs(Number(await sh(box, 'date +%s')) - now())).toBeLessThan(30);
    expect((await more.box.info()).created_at_unix).toBeLessThan(now() - 23 * HOUR);
  }
  const second = await box.branch({ tag: 'after' });
  expect(second.created_at_unix).toBeLessThan(first.created_at_unix);

  await home.end('SIGKILL');
  await home.start();
  expect(await box.info()).toMatchObject({ state: 'running' });
  // Which stands on which is no matter of time.
  expect(await client.snapshots.get('after')).toMatchObject({
    ancestors: expect.arrayContaining([first.id]),
  });
  expect((await client.snapshots.get('before')).dependents).toContain(second.id);
  for (const tag of ['before', 'after']) {
    await using grandchildren = await fork(1, { snapshot: tag }, client);
    expect(await sh(grandchildren.box, 'cat /root/kept')).toBe('kept');
  }
  // Tables have ages; none is negative, whatever clock they are compared with.
  for (const command of [['ls'], ['snapshot', 'ls'], ['tree']]) {
    const { code, stdout } = await forkd(command, { env: { FORKD_HOME: home.path } });
    expect(code).toBe(0);
    expect(stdout).not.toMatch(/(?:^|\s)-\d|NaN/m);
  }
  await children[Symbol.asyncDispose]();
  await client.snapshots.removeWithDependents(first.id);

  set(24 * HOUR);
  await using later = await fork(1, {}, client);
  const { code, stdout } = await forkd(['ls'], { env: { FORKD_HOME: home.path } });
  expect(code).toBe(0);
  expect(stdout).not.toMatch(/(?:^|\s)-\d|NaN/m);
  expect(await sh(later.box, 'echo fine')).toBe('fine');
});
