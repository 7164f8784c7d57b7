/** The SDK against a real daemon in a process of its own, whose machines are processes of this host. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { finished } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import type { BuildEvent } from '@forkd/api';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import {
  CancelledError,
  ConflictError,
  Forkd,
  ForkdError,
  InvalidError,
  NotFoundError,
  type Sandbox,
  UnauthorizedError,
} from './index.js';

// A process of Node is started, which loads all of the daemon.
vi.setConfig({ testTimeout: 30_000, hookTimeout: 60_000 });

const home = mkdtempSync(join(tmpdir(), 'forkd-sdk-'));
let daemon: ChildProcess;
let tcp: string;
let client: Forkd;
let box: Sandbox;

beforeAll(async () => {
  mkdirSync(join(home, 'templates'));
  writeFileSync(join(home, 'templates', 'base.yaml'), 'name: base\n');
  const program = fileURLToPath(new URL('../../controller/src/testing/serve-fake.ts', import.meta.url));
  daemon = spawn(process.execPath, ['--import', 'tsx', program, home, '127.0.0.1:0'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [line] = (await once(daemon.stdout as Readable, 'data')) as [Buffer];
  tcp = line.toString().trim().split(' ')[1] as string;
  client = new Forkd({ home });
  const events: BuildEvent[] = [];
  for await (const event of client.templates.build('base')) events.push(event);
  expect(events.map((event) => event.type)).toEqual(['step', 'log', 'step', 'done']);
  [box] = (await client.fork({ snapshot: 'base', env: { FROM: 'fork' } })).sandboxes as [Sandbox];
});
afterAll(async () => {
  await client.close();
  const ended = once(daemon, 'exit', { signal: AbortSignal.timeout(20_000) });
  daemon.kill('SIGTERM');
  await ended;
  rmSync(home, { recursive: true, force: true });
});

describe('a client', () => {
  it('sees daemon, host, templates, snapshots and sandboxes', async () => {
    await client.health();
    expect(await client.version()).toMatchObject({ api: 'v1' });
    expect(await client.daemon()).toMatchObject({ pid: daemon.pid, tcp, sandboxes: expect.any(Number) });
    expect(await client.host()).toMatchObject({ checks: [{ name: 'qemu' }] });
    expect(await client.templates.list()).toMatchObject([{ name: 'base', built: true }]);
    expect(await client.templates.get('base')).toMatchObject({ yaml: 'name: base\n' });
    const [snapshot] = await client.snapshots.list();
    expect(await client.snapshots.get('base')).toMatchObject({ id: snapshot?.id, dependents: [box.id] });
    expect(await client.snapshots.verify('base')).toMatchObject({ ok: true });
    await expect(client.snapshots.remove('base')).rejects.toBeInstanceOf(ConflictError);
    expect(await client.sandboxes.list({ memory: true })).toMatchObject([
      { id: box.id, memory_bytes: 1_048_576 },
    ]);
    expect((await client.sandboxes.get(box.id)).lastInfo).toMatchObject({ id: box.id });
  });

  it('over TCP shows the token of the home that it is given', async () => {
    await using open = new Forkd({ url: `http://${tcp}`, home });
    expect(await open.sandboxes.list()).toHaveLength(1);
    const started = await open.sandbox(box.id).run(['echo', 'over TCP']);
    expect(await text(started.stdout)).toBe('over TCP\n');
    await using closed = new Forkd({ url: `http://${tcp}`, token: 'wrong' });
    await expect(closed.sandboxes.list()).rejects.toBeInstanceOf(UnauthorizedError);
    await expect(closed.sandbox(box.id).run(['true'])).rejects.toBeInstanceOf(UnauthorizedError);
  });

  it('forks, and gets an error for each kind of refusal', async () => {
    const { sandboxes, failures } = await client.fork({ snapshot: 'base', n: 3, hostnamePrefix: 'h' });
    expect(failures).toEqual([]);
    expect(sandboxes.map((sandbox) => sandbox.lastInfo?.hostname)).toEqual(['h-0', 'h-1', 'h-2']);
    await Promise.all(sandboxes.map((sandbox) => sandbox.kill()));
    await expect(client.fork({ snapshot: 'base', n: 0 })).rejects.toBeInstanceOf(InvalidError);
    const error = await client.fork({ snapshot: 'nothing' }).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(NotFoundError);
    expect(error).toMatchObject({
      code: 'snapshot_not_found',
      status: 404,
      remedy: expect.stringContaining('forkd'),
    });
    await expect(sandboxes[0]?.kill()).rejects.toMatchObject({ code: 'sandbox_not_found' });
  });

  it('that gives up a build ends it, and the next one starts', async () => {
    const abort = AbortSignal.abort();
    const never = client.templates.build('base', { signal: abort }).next();
    await expect(never).rejects.toBeInstanceOf(CancelledError);
    for await (const _ of client.templates.build('base', { noCache: true, tag: 'second' })) break;
    const again: string[] = [];
    // The cancelled one may still be on its way out.
    await vi.waitFor(async () => {
      for await (const event of client.templates.build('base', { tag: 'second' })) again.push(event.type);
    });
    expect(again.at(-1)).toBe('done');
  });
});

describe('exec', () => {
  it('collects output, code, and input', async () => {
    expect(await box.exec({ shell: 'echo $FROM; echo err >&2; exit 3' })).toMatchObject({
      stdout: 'fork\n',
      stderr: 'err\n',
      exit_code: 3,
      outcome: { kind: 'exited', code: 3 },
    });
    const bytes = randomBytes(200_000);
    const binary = await box.exec(['cat'], { stdin: bytes, encoding: 'base64' });
    expect(Buffer.from(binary.stdout, 'base64').equals(bytes)).toBe(true);
    expect(await box.exec(['cat'], { stdin: 'héllo' })).toMatchObject({ stdout: 'héllo' });
    expect(await box.exec(['cat'])).toMatchObject({ stdout: '' });
  });

  it('tells apart the ends of a command', async () => {
    expect(await box.exec({ shell: 'kill -TERM $$' })).toMatchObject({
      exit_code: 143,
      outcome: { kind: 'signaled', signal: 'SIGTERM' },
    });
    expect(await box.exec(['sleep', '60'], { timeoutSecs: 0.1 })).toMatchObject({
      exit_code: 124,
      outcome: { kind: 'timeout' },
    });
  });

  it('keeps as much as is asked for and counts the rest', async () => {
    const answer = await box.exec({ shell: 'head -c 1000000 /dev/zero' }, { maxOutputBytes: 10 });
    expect(answer).toMatchObject({ stdout: '\0'.repeat(10), stdout_truncated_bytes: 999_990 });
  });

  it('of what is no command names it', async () => {
    await expect(box.exec(['frobnicate'])).rejects.toMatchObject({ code: 'command_not_found' });
    await expect(box.exec(['a\0b'])).rejects.toBeInstanceOf(InvalidError);
    await expect(box.exec([])).rejects.toBeInstanceOf(InvalidError);
  });

  it('that is given up kills the command', async () => {
    const abort = new AbortController();
    const running = box.exec({ shell: 'sleep 61' }, { signal: abort.signal });
    await vi.waitFor(async () => expect(await runningCommands()).toContain('sleep 61'));
    abort.abort();
    await expect(running).rejects.toBeInstanceOf(CancelledError);
    await vi.waitFor(async () => expect(await runningCommands()).not.toContain('sleep 61'));
  });
});

async function runningCommands(): Promise<string> {
  const all = await box.processes();
  return JSON.stringify(all.filter((entry) => entry.running).map((entry) => entry.command));
}

describe('run', () => {
  it('streams both ways, exactly, and more than fits into any buffer', async () => {
    const bytes = randomBytes(3_000_000);
    const process = await box.run(['cat'], { stdin: true });
    Readable.from([bytes], { objectMode: false }).pipe(process.stdin as NodeJS.WritableStream);
    const chunks: Buffer[] = [];
    for await (const chunk of process.stdout) chunks.push(chunk as Buffer);
    expect(Buffer.concat(chunks).equals(bytes)).toBe(true);
    expect(await process.wait()).toMatchObject({ exitCode: 0, outcome: { kind: 'exited' } });
  });

  it('lets a slow reader of stdout hold up neither stderr nor the daemon', async () => {
    const process = await box.run({ shell: 'echo now >&2; head -c 2000000 /dev/zero' });
    const [first] = (await once(process.stderr as Readable, 'data')) as [Buffer];
    expect(first.toString()).toBe('now\n');
    await box.ping();
    let length = 0;
    process.stdout.on('data', (chunk: Buffer) => {
      length += chunk.length;
    });
    await process.wait();
    await finished(process.stdout);
    expect(length).toBe(2_000_000);
  });

  it('whose reader goes away does not stop the command', async () => {
    const process = await box.run({ shell: 'head -c 2000000 /dev/zero' });
    process.stdout.destroy();
    expect(await process.wait()).toMatchObject({ exitCode: 0 });
  });

  it('whose command does not read its input ends all the same', async () => {
    const process = await box.run(['true'], { stdin: true });
    process.stdin?.write(Buffer.alloc(2_000_000));
    expect(await process.wait()).toMatchObject({ exitCode: 0 });
  });

  it('passes signals, and says when there is none of that name', async () => {
    const process = await box.run({
      shell: 'trap "echo got; exit 7" INT; echo up; while :; do sleep 0.05; done',
    });
    await once(process.stdout, 'data');
    process.signal('SIGINT');
    expect(await process.wait()).toMatchObject({ exitCode: 7 });
    const other = await box.run(['sleep', '62']);
    other.signal('SIGNOTHING');
    await expect(other.wait()).rejects.toMatchObject({ code: 'invalid_argument' });
    await vi.waitFor(async () => expect(await runningCommands()).not.toContain('"62"'));
  });

  it('that is given up kills the command, unless it is to be kept', async () => {
    const abort = new AbortController();
    const process = await box.run(['sleep', '63'], { signal: abort.signal });
    const kept = await box.run({ shell: 'sleep 0.3; echo kept; sleep 64' }, { keep: true });
    abort.abort();
    kept.close();
    await expect(process.wait()).rejects.toBeInstanceOf(CancelledError);
    await vi.waitFor(async () => expect(await runningCommands()).not.toContain('"63"'));
    expect(await runningCommands()).toContain('64');
    const again = await box.attach(kept.handle);
    const [line] = (await once(again.stdout, 'data')) as [Buffer];
    expect(line.toString()).toBe('kept\n');
    again.signal('SIGKILL');
    again.close();
  });

  it('waits no longer than its caller', async () => {
    const process = await box.run(['sleep', '65']);
    await expect(process.wait(AbortSignal.timeout(50))).rejects.toBeInstanceOf(CancelledError);
    process.close();
  });

  it('of what cannot be started is an error', async () => {
    await expect(box.run(['frobnicate'])).rejects.toMatchObject({ code: 'command_not_found' });
    await expect(box.attach(999)).rejects.toMatchObject({ code: 'process_not_found' });
    await expect(client.sandbox('sb-nothing').run(['true'])).rejects.toBeInstanceOf(NotFoundError);
  });
});

describe('eval', () => {
  it('answers values, output and exceptions, and keeps what was defined', async () => {
    expect(await box.eval('var x = 20; print("hi"); x + 1')).toMatchObject({
      result: '21',
      stdout: 'hi\n',
      exit_code: 0,
    });
    expect(await box.eval('x')).toMatchObject({ result: '20' });
    expect(await box.eval('nothing')).toMatchObject({
      exit_code: 1,
      error: 'ReferenceError: nothing is not defined',
      exception: { type: 'ReferenceError' },
    });
  });

  it('is interrupted at its time limit, and the interpreter lives on', async () => {
    const late = await box.eval('sleep(60000)', { timeoutSecs: 0.1 });
    expect(late).toMatchObject({ timed_out: true, exit_code: 124 });
    expect(await box.eval('x')).toMatchObject({ result: '20' });
  });

  it('streams its output', async () => {
    const seen: string[] = [];
    const result = await box.eval('print(1); print(2); 3', { onOutput: (_, part) => seen.push(part) });
    expect(seen.join('')).toBe('1\n2\n');
    expect(result).toMatchObject({ result: '3', stdout: '1\n2\n' });
    const silent = await box.eval('sleep(100).then(() => 5)', { onOutput: () => undefined });
    expect(silent.result).toBe('5');
    const none = box.eval('1', { interpreter: 'cobol', onOutput: () => undefined });
    await expect(none).rejects.toMatchObject({ code: 'interpreter_not_found', status: 409 });
  });
});

describe('files', () => {
  it('are written, read, listed, renamed and removed', async () => {
    const bytes = randomBytes(3_000_000);
    const info = await box.files.write('/ü file', Readable.from([bytes], { objectMode: false }), {
      mode: 0o600,
    });
    expect(info).toMatchObject({ name: 'ü file', type: 'file', size: 3_000_000, mode: 0o600 });
    expect((await box.files.read('/ü file')).equals(bytes)).toBe(true);
    expect((await box.files.read('/ü file', { offset: 5, length: 7 })).equals(bytes.subarray(5, 12))).toBe(
      true,
    );
    const { info: header, stream } = await box.files.readStream('/ü file');
    expect(header.name).toBe('ü file');
    stream.destroy();
    await box.files.mkdir('/d/e', { parents: true });
    await box.files.rename('/ü file', '/d/f');
    await box.files.write('/d/empty', '');
    expect((await box.files.list('/d')).map((entry) => entry.name)).toEqual(['e', 'empty', 'f']);
    expect(await box.files.readText('/d/empty')).toBe('');
    await expect(box.files.remove('/d')).rejects.toMatchObject({ code: 'directory_not_empty' });
    await box.files.remove('/d', { recursive: true });
    await expect(box.files.stat('/d')).rejects.toMatchObject({ code: 'file_not_found' });
  });

  it('whose upload breaks off stay as they were', async () => {
    await box.files.write('/old', 'old');
    const broken = async function* () {
      yield Buffer.from('new');
      throw new Error('the source broke');
    };
    await expect(box.files.write('/old', broken())).rejects.toBeInstanceOf(ForkdError);
    expect(await box.files.readText('/old')).toBe('old');
  });

  it('with a name that cannot be are refused', async () => {
    await expect(box.files.read('/a\0b')).rejects.toBeInstanceOf(InvalidError);
    await expect(box.files.read('')).rejects.toBeInstanceOf(InvalidError);
    await expect(box.files.read('/')).rejects.toMatchObject({ code: 'is_a_directory' });
  });
});

describe('a sandbox', () => {
  it('has logs, numbers and a pulse', async () => {
    expect(await box.logs()).toEqual({ console: 'console text', vmm: 'vmm text' });
    expect(await box.metrics()).toMatchObject({ cpus: 1, uptime_ns: 5, memory: { total: 7 } });
    expect(await box.ping()).toMatchObject({ pong: true });
  });
});
