/** Both sides of the conversation: this client and the real agent, built for the host. */
import { createHash, randomBytes } from 'node:crypto';
import { symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { type Duplex, Readable } from 'node:stream';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AgentHost, agentIsBuilt, startAgentHost } from '../../../../test/agent-cut/agent-host.js';
import { AgentError } from './errors.js';
import { SYNC_MAGIC } from './frames.js';
import { openAgentSession } from './session.js';
import type { AgentProcess, AgentSession } from './types.js';

async function bytesOf(stream: AsyncIterable<Buffer> | null): Promise<Buffer> {
  const all: Buffer[] = [];
  for await (const chunk of stream ?? []) all.push(chunk);
  return Buffer.concat(all);
}

async function finish(p: AgentProcess) {
  const [out, err, end] = await Promise.all([bytesOf(p.stdout), bytesOf(p.stderr), p.wait()]);
  return { out: out.toString('latin1'), err: err.toString('latin1'), end };
}

describe.skipIf(!agentIsBuilt)('session with the agent', () => {
  let host: AgentHost;
  let session: AgentSession;

  beforeAll(async () => {
    host = await startAgentHost();
    session = await openAgentSession({ dial: host.dial, connectTimeoutMs: 5000 });
  });
  afterAll(async () => {
    await session.close();
    await host[Symbol.asyncDispose]();
  });

  it('runs a command: output, input, exit code', async () => {
    const p = await session.spawn({
      command: { shell: 'echo out; echo err >&2; cat; exit 3' },
      stdin: 'pipe',
    });
    p.stdin?.end('in');
    const { out, err, end } = await finish(p);
    expect({ out, err }).toEqual({ out: 'out\nin', err: 'err\n' });
    expect(end).toMatchObject({ kind: 'exited', code: 3, stdoutBytes: 6n, stderrBytes: 4n });
  });

  it('carries every byte both ways, the magic of SYNC among them', async () => {
    const input = Buffer.concat([
      randomBytes(700_000),
      SYNC_MAGIC,
      SYNC_MAGIC,
      randomBytes(700_000),
      SYNC_MAGIC,
    ]);
    const p = await session.spawn({ command: ['cat', SYNC_MAGIC.subarray(0, 4), '-'], stdin: 'pipe' });
    p.stdin?.end(input);
    const { out, end } = await finish(p);
    expect(Buffer.from(out, 'latin1').equals(input)).toBe(true);
    expect(end).toMatchObject({ kind: 'exited', code: 1 });
  });

  it('carries arguments of a megabyte less its frame, in fragments', async () => {
    const long = Array.from({ length: 8 }, () => 'x'.repeat(100_000));
    const p = await session.spawn({ command: ['sh', '-c', 'echo $#', 'sh', ...long, SYNC_MAGIC] });
    expect((await finish(p)).out).toBe('9\n');
    await expect(session.spawn({ command: ['true', 'x'.repeat(1_100_000)] })).rejects.toMatchObject({
      code: 'too_large',
    });
  });

  it('says why a command cannot start', async () => {
    const codes = await Promise.all(
      [['no-such-program'], ['/etc/passwd'], ['/']].map((command) =>
        session.spawn({ command }).then(
          () => 'started',
          (error: AgentError) => error.code,
        ),
      ),
    );
    expect(codes).toEqual(['not_found', expect.stringMatching(/permission|not_exec/), expect.any(String)]);
    await expect(session.spawn({ command: [] })).rejects.toMatchObject({ code: 'invalid' });
    await expect(session.spawn({ command: ['true'], cwd: '/nowhere' })).rejects.toMatchObject({
      code: 'not_found',
    });
  });

  it('tells death by signal, time-out and cancellation apart', async () => {
    const outcomes = await Promise.all([
      session.spawn({ command: { shell: 'kill -TERM $$' } }).then(finish),
      session.spawn({ command: ['sleep', '60'], timeoutMs: 100 }).then(finish),
      session.spawn({ command: ['sleep', '60'] }).then(async (p) => {
        await p.signal('SIGKILL', { cancel: true });
        return finish(p);
      }),
    ]);
    expect(outcomes.map((o) => o.end.kind)).toEqual(['signaled', 'timeout', 'cancelled']);
    expect(outcomes[0]?.end).toMatchObject({ signalName: 'SIGTERM' });
  });

  it('a slow reader holds up its own writer only', async () => {
    const slow = await session.spawn({ command: ['head', '-c', '3000000', '/dev/zero'] });
    const quick = await session.spawn({ command: ['echo', 'quick'] });
    expect((await finish(quick)).out).toBe('quick\n');
    const { end } = await finish(slow);
    expect(end.stdoutBytes).toBe(3_000_000n);
  });

  it('a reader that goes away does not stop the process', async () => {
    const p = await session.spawn({ command: ['head', '-c', '3000000', '/dev/zero'] });
    p.stdout.destroy();
    expect(await p.wait()).toMatchObject({ kind: 'exited', code: 0, stdoutBytes: 3_000_000n });
  });

  it('attaches to a process: from what is kept, or from now on', async () => {
    const p = await session.spawn({ command: { shell: 'echo one; read x; echo $x' }, stdin: 'pipe' });
    const first = await new Promise<Buffer>((resolve) => p.stdout.once('data', resolve));
    expect(String(first)).toBe('one\n');
    const kept = await session.attach(p.handle);
    const now = await session.attach(p.handle, { from: 'now' });
    p.stdin?.write('two\n');
    expect((await finish(kept)).out).toBe('one\ntwo\n');
    expect((await finish(now)).out).toBe('two\n');
    const listed = (await session.ps()).find((q) => q.handle === p.handle);
    expect(listed).toMatchObject({ state: 'exited', outcome: { kind: 'exited', code: 0 } });
    await p.release();
    await expect(session.attach(p.handle)).rejects.toMatchObject({ code: 'no_such_process' });
  });

  it('runs a terminal', async () => {
    const p = await session.spawn({
      command: { shell: 'stty size; read x; stty size' },
      pty: { rows: 24, cols: 80 },
    });
    expect(p.stderr).toBeNull();
    const out = bytesOf(p.stdout);
    await p.resize(50, 132);
    p.stdin?.write('\n');
    expect(String(await out)).toMatch(/^(\r\n|(24 80|50 132)\r\n){2}50 132\r\n$/);
    expect(await p.wait()).toMatchObject({ kind: 'exited', code: 0 });
  });

  it('leaves nothing of a command whose start was given up', async () => {
    const abort = new AbortController();
    const starting = session.spawn({ command: ['sleep', '987'] }, abort.signal);
    abort.abort();
    await expect(starting).rejects.toMatchObject({ code: 'aborted' });
    await expect
      .poll(
        async () =>
          (await session.ps()).filter((p) => p.command[1] === '987' && p.state === 'running').length,
      )
      .toBe(0);
  });

  it('writes and reads files whole, in part, and from a stream', async () => {
    const content = randomBytes(1_500_000);
    const pieces = Readable.from([
      content.subarray(0, 10),
      content.subarray(10, 900_000),
      content.subarray(900_000),
    ]);
    const info = await session.files.write('/tmp/a/b/big', pieces, { mkdirs: true, mode: 0o640 });
    expect(info).toMatchObject({ type: 'file', mode: 0o640, size: 1_500_000n });
    const { stream } = await session.files.read('/tmp/a/b/big');
    const hash = (b: Buffer) => createHash('sha256').update(b).digest('hex');
    expect(hash(await bytesOf(stream))).toBe(hash(content));
    const part = await session.files.read('/tmp/a/b/big', { offset: 1_499_990n, length: 100 });
    expect((await bytesOf(part.stream)).equals(content.subarray(1_499_990))).toBe(true);
    expect((await session.files.write('/tmp/empty', Buffer.alloc(0))).size).toBe(0n);
    expect(await bytesOf((await session.files.read('/tmp/empty')).stream)).toHaveLength(0);
  });

  it('keeps the old file when an upload fails', async () => {
    await session.files.write('/tmp/old', Buffer.from('old'));
    async function* failing() {
      yield Buffer.from('new');
      throw new Error('the source broke');
    }
    await expect(session.files.write('/tmp/old', Readable.from(failing()))).rejects.toThrow(
      'the source broke',
    );
    expect(String(await bytesOf((await session.files.read('/tmp/old')).stream))).toBe('old');
    const left = (await session.files.list('/tmp')).map((e) => e.name).filter((n) => n.includes('old'));
    expect(left).toEqual(['old']);
  });

  it('a read that is given up stops, and the next one works', async () => {
    await session.files.write('/tmp/long', Buffer.alloc(4_000_000));
    const { stream } = await session.files.read('/tmp/long');
    for await (const _ of stream) break;
    expect(await bytesOf((await session.files.read('/tmp/long', { length: 3 })).stream)).toHaveLength(3);
  });

  it('lists, links, renames, removes; names are bytes', async () => {
    const { files } = session;
    await files.mkdir('/tmp/d/e', { parents: true });
    await files.write(Buffer.from('/tmp/d/\xff', 'latin1'), Buffer.from('x'));
    await files.symlink('nowhere', '/tmp/d/link');
    const entries = await files.list('/tmp/d');
    expect(entries.map((e) => [e.rawName.toString('latin1'), e.type]).sort()).toEqual([
      ['e', 'directory'],
      ['link', 'symlink'],
      ['\xff', 'file'],
    ]);
    expect(entries.find((e) => e.name === 'link')?.target).toBe('nowhere');
    await files.rename('/tmp/d', '/tmp/f');
    await expect(files.stat('/tmp/d')).rejects.toMatchObject({ code: 'not_found', errno: 'ENOENT' });
    await files.setAttributes('/tmp/f', { mode: 0o700, mtimeNs: 1_234_567_890n });
    expect(await files.stat('/tmp/f')).toMatchObject({ mode: 0o700, mtimeNs: 1_234_567_890n });
    await expect(files.remove('/tmp/f')).rejects.toBeInstanceOf(AgentError);
    await files.remove('/tmp/f', { recursive: true });
    symlinkSync('loop', join(host.root, 'loop'));
    await expect(files.read('/loop')).rejects.toMatchObject({ code: 'loop' });
  });

  it('lists a directory of many entries', async () => {
    await session.files.mkdir('/tmp/many');
    for (let i = 0; i < 1000; i++) writeFileSync(join(host.root, 'tmp/many', `file-${i}`), '');
    expect(await session.files.list('/tmp/many')).toHaveLength(1000);
  });

  it('watches a tree', async () => {
    await session.files.mkdir('/tmp/watched');
    await using watch = await session.files.watch('/tmp/watched', { recursive: true });
    const seen: string[] = [];
    const reading = (async () => {
      for await (const event of watch) {
        if ('path' in event) seen.push(`${event.kind} ${event.path}`);
        if (event.kind === 'removed') return;
      }
    })();
    await session.files.mkdir('/tmp/watched/sub');
    await session.files.remove('/tmp/watched/sub');
    await reading;
    expect(seen.some((line) => /^created .*sub$/.test(line))).toBe(true);
    expect(seen.at(-1)).toMatch(/^removed .*sub$/);
    watch.close();
    const after = await watch[Symbol.asyncIterator]().next();
    expect(after.done).toBe(true);
  });

  it('dials a port, with an end for each direction', async () => {
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      socket.on('data', (d) => socket.write(d));
      socket.on('end', () => socket.end('bye'));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const address = server.address();
    const port = typeof address === 'object' && address ? address.port : 0;
    const input = randomBytes(800_000);
    const connection = await session.dial(port);
    connection.end(input);
    const back = await bytesOf(connection);
    expect(back.equals(Buffer.concat([input, Buffer.from('bye')]))).toBe(true);
    server.close();
    await expect(session.dial(1)).rejects.toMatchObject({ code: 'refused' });
  });

  it('answers metrics, pings, and hundreds of calls at once', async () => {
    expect((await session.metrics()).memory.total).toBeGreaterThan(0n);
    await session.ping();
    const stats = await Promise.all(Array.from({ length: 200 }, () => session.files.stat('/tmp')));
    expect(new Set(stats.map((s) => s.type))).toEqual(new Set(['directory']));
  });

  it('ends what it waits for when the guest is gone, though it had just answered', async () => {
    await using mine = await startAgentHost();
    let gone = false;
    let last: Duplex | undefined;
    const own = await openAgentSession({
      dial: async () => {
        if (gone) throw new Error('nobody there');
        last = await mine.dial();
        return last;
      },
      reconnectTimeoutMs: 300,
    });
    const p = await own.spawn({ command: ['sleep', '30'] });
    gone = true;
    last?.destroy();
    await expect(p.wait()).rejects.toMatchObject({ code: 'unreachable' });
    await own.closed;
  });

  it('refuses to begin what is already aborted', async () => {
    const signal = AbortSignal.abort();
    await expect(session.spawn({ command: ['true'] }, signal)).rejects.toMatchObject({ code: 'aborted' });
    await expect(openAgentSession({ dial: host.dial, signal })).rejects.toMatchObject({ code: 'aborted' });
  });
});
