import { mkdtemp, rm } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { dialVsock } from './vsock.js';

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'forkd-vsock-'));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

const soon = (): AbortSignal => AbortSignal.timeout(5000);
let sockets = 0;

/** A device that takes a request and then does as it is told. */
async function device(answer: (socket: net.Socket) => void): Promise<{ path: string } & AsyncDisposable> {
  const path = join(dir, `${sockets++}.sock`);
  const open = new Set<net.Socket>();
  const server = net.createServer((socket) => {
    open.add(socket);
    socket.on('error', () => {});
    socket.once('data', (request) => {
      expect(request.toString()).toBe('CONNECT 52\n');
      answer(socket);
    });
  });
  await new Promise<void>((done) => {
    server.listen(path, done);
  });
  return {
    path,
    [Symbol.asyncDispose]: async () => {
      for (const socket of open) socket.destroy();
      await new Promise((done) => {
        server.close(done);
      });
    },
  };
}

async function firstBytes(socket: net.Socket, count: number): Promise<string> {
  let got = '';
  socket.on('data', (chunk: Buffer) => {
    got += chunk.toString('latin1');
    if (got.length >= count) socket.emit('enough');
  });
  const enough = new Promise((done) => {
    socket.once('enough', done);
  });
  socket.resume();
  await enough;
  socket.destroy();
  return got;
}

describe('a connection to a port of the guest', () => {
  it('loses nothing that came with the answer, or right after it', async () => {
    await using there = await device((socket) => {
      socket.write('OK 10737');
      setImmediate(() => socket.write('41824\nhel', () => socket.write('lo')));
    });
    expect(await firstBytes(await dialVsock(there.path, 52, soon()), 5)).toBe('hello');
  });

  it.each([
    ['the connection is closed', (socket: net.Socket) => socket.destroy(), /closed/],
    ['something else is answered', (socket: net.Socket) => socket.write('NO\n'), /"NO"/],
    ['no line ever ends', (socket: net.Socket) => socket.write('O'.repeat(100)), /OOO/],
  ])('is refused when %s', async (_, answer, words) => {
    await using there = await device(answer);
    const dialled = dialVsock(there.path, 52, soon());
    await expect(dialled).rejects.toMatchObject({ code: 'guest_unreachable' });
    await expect(dialled).rejects.toThrow(words);
  });

  it('is given up at the deadline', async () => {
    await using there = await device(() => {});
    await expect(dialVsock(there.path, 52, AbortSignal.timeout(30))).rejects.toThrow(/timeout|aborted/i);
  });
});
