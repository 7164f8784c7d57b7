/**
 * Connections cut a thousand times, at every frame boundary and amid frames, while commands run and files move: no byte is
 * lost or repeated, and nothing is done twice.
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AgentSession, openAgentSession } from '../../packages/engine/src/agent/index.js';
import { type AgentHost, agentIsBuilt, startAgentHost } from './agent-host.js';
import { type Cut, Cutter, randomFrom } from './cutter.js';

/** Cuts in all; FORKD_CUTS=100000 for a night. */
const WANTED = Number(process.env.FORKD_CUTS ?? 1000);
const SEED = Number(process.env.FORKD_CUT_SEED ?? 1);

async function bytesOf(stream: AsyncIterable<Buffer> | null): Promise<Buffer> {
  const all: Buffer[] = [];
  for await (const chunk of stream ?? []) all.push(chunk);
  return Buffer.concat(all);
}

const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

function bytesFrom(random: (below: number) => number, length: number): Buffer {
  const bytes = Buffer.alloc(length);
  for (let at = 0; at < length; at++) bytes[at] = random(256);
  return bytes;
}

function numbers(from: number, to: number): string {
  let text = '';
  for (let n = from; n <= to; n++) text += `${n}\n`;
  return text;
}

describe.skipIf(!agentIsBuilt)('a session over connections that break', () => {
  let host: AgentHost;
  let server: Server;
  let port: number;
  let total = 0;
  let run = 0;

  beforeAll(async () => {
    host = await startAgentHost();
    server = createServer({ allowHalfOpen: true }, (socket) => {
      socket.on('error', () => {});
      socket.pipe(socket);
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const address = server.address();
    port = typeof address === 'object' && address ? address.port : 0;
  });
  afterAll(async () => {
    server.close();
    await host[Symbol.asyncDispose]();
  });

  /** Every kind of request at once. What is done twice, or not at all, shows. */
  async function work(session: AgentSession, name: string, random: (below: number) => number, size: number) {
    const dir = `/tmp/${name}`;
    const log = join(host.root, 'tmp', name, 'log');
    await session.files.mkdir(dir);
    const input = bytesFrom(random, size);
    const upload = bytesFrom(random, size);
    const last = Math.ceil(size / 8) + 10;

    const once = (n: number) => async () => {
      const p = await session.spawn({
        command: { shell: `echo ${n} >> ${log}; seq 1 ${last}; seq 1 ${n} >&2; exit ${n}` },
      });
      const [out, err, end] = await Promise.all([bytesOf(p.stdout), bytesOf(p.stderr), p.wait()]);
      expect(out.toString() === numbers(1, last)).toBe(true);
      expect(err.toString()).toBe(numbers(1, n));
      expect(end).toMatchObject({ kind: 'exited', code: n });
      await p.release();
    };
    const fragments = async () => {
      const long = 'x'.repeat(40_000);
      const p = await session.spawn({ command: ['sh', '-c', `echo long >> ${log}; echo $#$1`, 'sh', long] });
      expect((await bytesOf(p.stdout)).toString()).toBe(`1${long}\n`);
      await p.wait();
    };
    // Nobody waits for it: whether or not the guest had begun it, it must not stay.
    const givenUp = async () => {
      const abort = new AbortController();
      const starting = session.spawn({ command: ['sleep', '4321'] }, abort.signal);
      for (let turns = random(20); turns > 0; turns--) await new Promise((resolve) => setImmediate(resolve));
      abort.abort();
      // It may have been quicker.
      await starting.then((p) => p.signal('SIGKILL', { cancel: true })).catch(() => {});
    };
    const echo = async () => {
      const p = await session.spawn({ command: ['cat'], stdin: 'pipe' });
      p.stdin?.end(input);
      const [out, end] = await Promise.all([bytesOf(p.stdout), p.wait()]);
      expect(digest(out)).toBe(digest(input));
      expect(end).toMatchObject({ kind: 'exited', code: 0, stdoutBytes: BigInt(size) });
    };
    const file = async () => {
      expect((await session.files.write(`${dir}/file`, upload)).size).toBe(BigInt(size));
      const { stream } = await session.files.read(`${dir}/file`);
      expect(digest(await bytesOf(stream))).toBe(digest(upload));
    };
    // Each of these fails when it is done a second time.
    const names = async () => {
      await session.files.mkdir(`${dir}/a`);
      await session.files.rename(`${dir}/a`, `${dir}/b`, { replace: false });
      await session.files.symlink('x', `${dir}/a`);
      await session.files.remove(`${dir}/b`);
      expect((await session.files.list(dir)).map((e) => e.name)).toContain('a');
    };
    const dial = async () => {
      const connection = await session.dial(port);
      connection.end(input);
      expect(digest(await bytesOf(connection))).toBe(digest(input));
    };
    await Promise.all([
      once(1)(),
      once(2)(),
      fragments(),
      givenUp(),
      echo(),
      file(),
      names(),
      dial(),
      session.ping(),
      session.metrics(),
    ]);
    expect(readFileSync(log, 'utf8').split('\n').sort().join(' ')).toBe(' 1 2 long');
    await expect
      .poll(
        async () => (await session.ps()).filter((p) => p.command[1] === '4321' && p.state === 'running'),
        {
          timeout: 20_000,
        },
      )
      .toEqual([]);
    await session.files.remove(dir, { recursive: true });
  }

  async function throughCuts(
    seed: number,
    size: number,
    next: (random: (below: number) => number) => Cut | null,
  ) {
    const random = randomFrom(seed);
    const cutter = new Cutter(host.socket, random, () => next(random));
    await using session = await openAgentSession({ dial: cutter.dial, reconnectTimeoutMs: 30_000 });
    await work(session, `run-${run++}`, random, size);
    total += cutter.cuts;
    return cutter;
  }

  it('is the same conversation when it is cut once, before or amid each of its frames', async () => {
    const { frames } = await throughCuts(SEED, 3000, () => null);
    expect(frames).toBeGreaterThan(50);
    for (let frame = 0; frame < frames; frame++) {
      for (const amid of [false, true]) {
        let cut: Cut | null = { frame, amid };
        await throughCuts(SEED + frame, 3000, () => {
          const now = cut;
          cut = null;
          return now;
        });
      }
    }
  });

  it('loses nothing and does nothing twice when it is cut again and again', async () => {
    for (let seed = SEED; total < WANTED; seed++) {
      const size = 2 ** (10 + (seed % 10));
      await throughCuts(seed, size, (random) => ({ frame: random(60), amid: random(2) === 0 }));
    }
    expect(total).toBeGreaterThanOrEqual(WANTED);
    expect(host.complaints()).not.toMatch(/broke the protocol|is no frame/);
  });
});
