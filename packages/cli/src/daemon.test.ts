import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { answers, ensureDaemon, stopDaemon } from './daemon.js';

let home: string;
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'fk-'));
});
afterEach(() => rmSync(home, { recursive: true, force: true }));

/** A daemon that does as `body` says; `say`, `listen` and `socket` are at hand. */
function program(body: string): string {
  const file = join(home, 'program.mjs');
  writeFileSync(
    file,
    `import { writeSync, closeSync, mkdirSync } from 'node:fs';
     import { createServer } from 'node:net';
     const socket = process.env.FORKD_HOME + '/forkd.sock';
     const say = (message) => { writeSync(3, JSON.stringify(message) + '\\n'); closeSync(3); };
     const listen = (then) => createServer((c) => c.end()).listen(socket, then);
     ${body}`,
  );
  return file;
}

describe('a daemon that the CLI needs', () => {
  it('is started when none answers, and used when one does', async () => {
    const file = program(`listen(() => say({ type: 'ready' }));`);
    const { child } = await ensureDaemon(home, undefined, file);
    expect(child?.pid).toBeGreaterThan(0);
    expect(await ensureDaemon(home, undefined, '/none')).toEqual({});
    if (child) await stopDaemon(child);
    expect(await answers(join(home, 'forkd.sock'))).toBe(false);
  });

  it('passes on why it did not start', async () => {
    const file = program(`say({ type: 'failed', error: { message: 'no luck', remedy: 'try harder' } });`);
    await expect(ensureDaemon(home, undefined, file)).rejects.toMatchObject({
      message: 'the daemon did not start: no luck',
      hint: 'try harder',
    });
  });

  it('that dies silently is told with its last words', async () => {
    const file = program(`process.stderr.write('out of luck\\n'); process.exit(3);`);
    await expect(ensureDaemon(home, undefined, file)).rejects.toThrow(
      'the daemon ended before it was ready (exit code 3); it said: out of luck',
    );
  });

  it('that lost against another one is not needed: the other is waited for', async () => {
    // The winner is still starting when the loser ends.
    const winner = program(`setTimeout(() => listen(() => say({ type: 'ready' })), 400);`);
    const first = ensureDaemon(home, undefined, winner);
    const loser = join(home, 'loser.mjs');
    writeFileSync(loser, `import { writeSync } from 'node:fs'; writeSync(3, '{"type":"exists"}\\n');`);
    expect(await ensureDaemon(home, undefined, loser)).toEqual({});
    const { child } = await first;
    if (child) await stopDaemon(child);
  });

  it('is ended when the caller gives up', async () => {
    const file = program(`mkdirSync(process.env.FORKD_HOME + '/started'); setInterval(() => {}, 1000);`);
    const interrupt = new AbortController();
    const starting = ensureDaemon(home, interrupt.signal, file);
    const { watch } = await import('node:fs');
    const watcher = watch(home, () => existsSync(join(home, 'started')) && interrupt.abort());
    await expect(starting).rejects.toMatchObject({ kind: 'cancelled' });
    watcher.close();
  });

  it('needs a state directory that can be made', async () => {
    const file = program('');
    await expect(ensureDaemon(join(file, 'x'), undefined, file)).rejects.toThrow(
      `the state directory ${join(file, 'x')} cannot be used: ENOTDIR`,
    );
  });
});
