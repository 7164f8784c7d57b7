import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type RequestListener, type Server } from 'node:http';
import { createServer as createNetServer, type Server as NetServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { resolveAddress } from './address.js';
import { BusyError, FailedError, Forkd, UnreachableError } from './index.js';

const dir = mkdtempSync(join(tmpdir(), 'forkd-sdk-'));
const socket = join(dir, 'forkd.sock');
let server: Server | NetServer | undefined;
afterEach(() => {
  server?.close();
  server = undefined;
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

async function answering(listener: RequestListener): Promise<Forkd> {
  server = createServer({ keepAlive: false }, listener).listen(socket);
  await once(server, 'listening');
  return new Forkd({ socket });
}

describe('a daemon that is not there', () => {
  it.each([
    ['no socket', () => join(dir, 'none.sock')],
    ['a file instead of a socket', () => join(dir, 'file')],
    ['a path through a file', () => join(dir, 'file', 'x.sock')],
  ])('is unreachable: %s', async (_, path) => {
    writeFileSync(join(dir, 'file'), '');
    await using client = new Forkd({ socket: path() });
    for (const call of [() => client.health(), () => client.sandbox('sb-1').run(['true'])]) {
      const error = await call().catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(UnreachableError);
      expect(error).toMatchObject({ code: 'daemon_unreachable', message: expect.stringContaining(path()) });
    }
  });

  it('is unreachable: a port where nobody listens', async () => {
    await using client = new Forkd({ url: 'http://127.0.0.1:1' });
    await expect(client.health()).rejects.toMatchObject({ code: 'daemon_unreachable' });
  });

  it('that goes in the middle is a lost connection', async () => {
    await using client = await answering((request) => request.socket.destroy());
    await expect(client.sandboxes.list()).rejects.toMatchObject({ code: 'connection_lost' });
    await expect(client.sandbox('sb-1').run(['true'])).rejects.toMatchObject({ code: 'connection_lost' });
  });
});

describe('an answer that is not of forkd', () => {
  it.each([
    ['text', 200, 'hello'],
    ['JSON of another shape', 200, '{"a":1}'],
    ['an entry of another shape', 200, '[{"a":1}]'],
    ['an error of another shape', 500, '{"message":"no"}'],
  ])('is told: %s', async (_, status, body) => {
    await using client = await answering((_request, response) => response.writeHead(status).end(body));
    const error = await client.sandboxes.list().catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(FailedError);
    expect(error).toMatchObject({ code: 'bad_answer' });
  });

  it('is told where it is no HTTP', async () => {
    server = createNetServer((connection) => connection.end('SSH-2.0\r\n')).listen(socket);
    await once(server, 'listening');
    await using client = new Forkd({ socket });
    await expect(client.health()).rejects.toMatchObject({ code: 'bad_answer' });
  });

  it('has fields that a newer daemon added, which is fine', async () => {
    await using client = await answering((_request, response) =>
      response.end('{"version":"9","api":"v1","new":1}'),
    );
    expect(await client.version()).toMatchObject({ version: '9' });
  });

  it('has a code that a newer daemon added: its status says what to do', async () => {
    const body = JSON.stringify({ error: 'full moon', code: 'full_moon', remedy: 'Wait.' });
    await using client = await answering((_request, response) => response.writeHead(503).end(body));
    const error = await client.version().catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(BusyError);
    expect(error).toMatchObject({ code: 'full_moon', message: 'full moon', remedy: 'Wait.', status: 503 });
  });
});

describe('an address', () => {
  it('is found by what is given, then by the environment', () => {
    expect(resolveAddress({}, { HOME: '/r' })).toMatchObject({
      socketPath: '/r/.local/state/forkd/forkd.sock',
    });
    expect(resolveAddress({}, { FORKD_HOME: '/f' })).toMatchObject({ socketPath: '/f/forkd.sock' });
    const env = { FORKD_HOME: '/f', FORKD_URL: 'http://h:1', FORKD_TOKEN: 't' };
    expect(resolveAddress({}, env)).toMatchObject({ origin: 'http://h:1', token: 't', socketPath: null });
    expect(resolveAddress({ home: '/g' }, env)).toMatchObject({ socketPath: '/g/forkd.sock', token: null });
  });

  it('that cannot be is refused by name', () => {
    expect(() => resolveAddress({}, {})).toThrow(/FORKD_HOME/);
    expect(() => resolveAddress({ url: 'nonsense' }, {})).toThrow(/"nonsense" is not a URL/);
    expect(() => resolveAddress({ url: 'ftp://h' }, {})).toThrow(/neither http/);
    expect(() => resolveAddress({ home: `/${'d'.repeat(120)}` }, {})).toThrow(/107 bytes/);
  });
});
