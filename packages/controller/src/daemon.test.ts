import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { parseServeArguments } from './main.js';
import { migrations } from './registry/schema.js';
import { startDaemon, temporaryHome } from './testing/daemon.js';

// Processes of Node are started, each of which loads all of the daemon.
vi.setConfig({ testTimeout: 60_000 });

let home: string;
beforeEach(() => {
  home = temporaryHome();
});
afterEach(() => rmSync(home, { recursive: true, force: true }));

/** A daemon in a process of its own. */
async function spawnDaemon(): Promise<{ pid: number; kill(signal: NodeJS.Signals): Promise<void> }> {
  const program = fileURLToPath(new URL('./testing/serve-fake.ts', import.meta.url));
  const child = spawn(process.execPath, ['--import', 'tsx', program, home], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  const ended = once(child, 'exit');
  return {
    pid: child.pid as number,
    kill: async (signal) => {
      child.kill(signal);
      await ended;
    },
  };
}

describe('a second daemon on one state directory', () => {
  it('is refused and names the pid of the first; after the first was killed it starts', async () => {
    const first = await spawnDaemon();
    await expect(startDaemon({ home })).rejects.toMatchObject({
      code: 'daemon_running',
      body: { details: { pid: first.pid } },
    });
    expect(existsSync(join(home, 'forkd.sock'))).toBe(true);
    // It leaves its socket behind, which is then stale.
    await first.kill('SIGKILL');
    expect(existsSync(join(home, 'forkd.sock'))).toBe(true);
    await using second = await startDaemon({ home });
    expect((await second.call('GET', '/healthz')).status).toBe(200);
  });

  it('of many at once leaves exactly one', async () => {
    const starts = await Promise.allSettled([1, 2, 3, 4].map(() => startDaemon({ home })));
    const running = starts.filter((start) => start.status === 'fulfilled');
    expect(running).toHaveLength(1);
    await running[0]?.value[Symbol.asyncDispose]();
  });
});

describe('the end of a daemon', () => {
  it('removes its socket and frees the directory for the next', async () => {
    const first = await spawnDaemon();
    await first.kill('SIGTERM');
    expect(existsSync(join(home, 'forkd.sock'))).toBe(false);
    await using second = await startDaemon({ home });
    expect((await second.call('GET', '/healthz')).status).toBe(200);
  });

  it('comes by itself after idle seconds', async () => {
    await using test = await startDaemon({ home, idleSecs: 0.05 });
    await test.daemon.closed;
    expect(existsSync(join(home, 'forkd.sock'))).toBe(false);
  });

  it('comes when its socket was removed, as nobody can reach it', async () => {
    await using test = await startDaemon({ home });
    rmSync(join(home, 'forkd.sock'));
    await test.daemon.closed;
  });
});

describe('a state directory', () => {
  it.each([
    ['a file', () => writeFileSync(join(home, 'x'), ''), () => join(home, 'x')],
    ['under a file', () => writeFileSync(join(home, 'x'), ''), () => join(home, 'x', 'y')],
    ['relative', () => undefined, () => 'relative'],
    ['too deep for a socket', () => undefined, () => join(home, 'd'.repeat(100))],
    ['where the socket is a directory', () => mkdirSync(join(home, 'forkd.sock')), () => home],
    [
      'with a registry that is none',
      () => writeFileSync(join(home, 'registry.db'), 'x'.repeat(5000)),
      () => home,
    ],
    ['with a lock that is a directory', () => mkdirSync(join(home, 'daemon.lock')), () => home],
    ['with an empty token', () => writeFileSync(join(home, 'token'), '\n'), () => home],
  ])('%s is refused by name', async (_, prepare, path) => {
    prepare();
    const error = await startDaemon({ home: path(), bind: '127.0.0.1:0' }).catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: 'home_unusable' });
    expect((error as Error).message).toContain(path());
  });

  it('whose registry a newer forkd made is refused', async () => {
    await (await startDaemon({ home }))[Symbol.asyncDispose]();
    const { default: Database } = await import('libsql');
    const database = new Database(join(home, 'registry.db'));
    database.exec(`PRAGMA user_version = ${migrations.length + 1}`);
    database.close();
    await expect(startDaemon({ home })).rejects.toMatchObject({
      message: expect.stringContaining('newer forkd'),
    });
  });

  it('gets private files', async () => {
    await using test = await startDaemon({ home, bind: '127.0.0.1:0' });
    expect(test.daemon.tcp).toMatch(/^127\.0\.0\.1:\d+$/);
    for (const name of ['forkd.sock', 'token']) expect(statSync(join(home, name)).mode & 0o777).toBe(0o600);
  });
});

describe('TCP', () => {
  const get = (tcp: string | null, path: string, headers: Record<string, string> = {}) =>
    fetch(`http://${tcp}${path}`, { headers });

  it('asks for the token, but for health and version', async () => {
    await using test = await startDaemon({ home, bind: '127.0.0.1:0' });
    const { tcp } = test.daemon;
    const token = readFileSync(join(home, 'token'), 'utf8').trim();
    expect((await get(tcp, '/healthz')).status).toBe(200);
    expect((await get(tcp, '/version')).status).toBe(200);
    for (const path of ['/v1/sandboxes', '/metrics', '/openapi.json', '/nothing']) {
      expect((await get(tcp, path)).status, path).toBe(401);
    }
    expect((await get(tcp, '/v1/sandboxes', { authorization: 'Bearer wrong' })).status).toBe(401);
    expect((await get(tcp, '/v1/sandboxes', { authorization: `Basic ${token}` })).status).toBe(401);
    expect((await get(tcp, '/v1/sandboxes', { authorization: `Bearer ${token}` })).status).toBe(200);
  });

  it('keeps web pages out', async () => {
    await using test = await startDaemon({ home, bind: '127.0.0.1:0' });
    const origin = await test.call('GET', '/v1/sandboxes', undefined, { origin: 'http://evil.example' });
    expect(origin).toMatchObject({ status: 403, body: { code: 'forbidden_origin' } });
    const { request } = await import('undici');
    const host = await request(`http://${test.daemon.tcp}/healthz`, { headers: { host: 'evil.example' } });
    expect({ status: host.statusCode, body: await host.body.json() }).toMatchObject({
      status: 403,
      body: { code: 'forbidden_host' },
    });
  });

  it('on a port in use is an error when it was asked for', async () => {
    const other = createServer().listen(0, '127.0.0.1');
    await once(other, 'listening');
    const { port } = other.address() as { port: number };
    const start = startDaemon({ home, bind: `127.0.0.1:${port}` });
    await expect(start).rejects.toMatchObject({
      code: 'address_unusable',
      message: `cannot listen on 127.0.0.1:${port}: the port is in use by another program`,
    });
    expect(existsSync(join(home, 'forkd.sock'))).toBe(false);
    other.close();
    await using next = await startDaemon({ home });
    expect(next.daemon.tcp).toBeNull();
  });
});

describe('the command line', () => {
  const parse = (...args: string[]) => parseServeArguments(args, { HOME: '/root' });
  it('has defaults', () => {
    expect(parse('serve')).toMatchObject({ home: '/root/.local/state/forkd', idleSecs: 0 });
    expect(parse('serve', '--idle-secs', '600', '--bind', '[::1]:9')).toMatchObject({
      idleSecs: 600,
      bind: '[::1]:9',
    });
  });
  it.each([[[]], [['run']], [['serve', '--idle-secs', '-1']], [['serve', '--frob']], [['serve', 'x']]])(
    '%j is refused',
    (args) => {
      expect(() => parse(...args)).toThrow(/command|idle-secs|arguments/);
    },
  );
  it('refuses an address that is none', async () => {
    for (const bind of ['8889', 'localhost', '127.0.0.1:99999', 'a b:1', '']) {
      await expect(startDaemon({ home, bind })).rejects.toMatchObject({ code: 'invalid_argument' });
    }
  });
});
