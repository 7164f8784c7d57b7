/** The drivers of guest/interpreters behind the real agent: what `eval` means. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AgentHost, agentIsBuilt, startAgentHost } from '../../../../test/agent-cut/agent-host.js';
import { openInterpreter } from './interpreter.js';
import { openAgentSession } from './session.js';
import type { AgentProcess, AgentSession, Interpreter } from './types.js';

const drivers = fileURLToPath(new URL('../../../../guest/interpreters/', import.meta.url));
const newGeneration = (digit: string): string => digit.repeat(32);

let host: AgentHost;
let session: AgentSession;

beforeAll(async () => {
  if (!agentIsBuilt) return;
  host = await startAgentHost();
  session = await openAgentSession({ dial: host.dial, connectTimeoutMs: 5000 });
});
afterAll(async () => {
  await session?.close();
  await host?.[Symbol.asyncDispose]();
});

function start(command: string[]): Promise<AgentProcess> {
  return session.spawn({ command, stdin: 'pipe', role: 'interpreter' });
}

describe.skipIf(!agentIsBuilt)('python', () => {
  let process: AgentProcess;
  let python: Interpreter;

  beforeAll(async () => {
    process = await start(['python3', `${drivers}python.py`, '--init', 'import random, tempfile\nwarm = 41']);
    python = await openInterpreter(session, process.handle);
  });

  it('says what it is', async () => {
    expect(await python.ready()).toMatchObject({
      language: 'python',
      version: expect.stringMatching(/^3\./),
    });
  });

  it('gives the value of the last expression, and keeps its names', async () => {
    expect(await python.eval('warm + 1')).toMatchObject({ value: '42', error: null, stdout: '' });
    expect((await python.eval('y = 5')).value).toBeNull();
    expect((await python.eval('def f():\n  return y\nf()')).value).toBe('5');
    expect((await python.eval('None')).value).toBeNull();
    expect((await python.eval('')).value).toBeNull();
    expect((await python.eval('import asyncio\nawait asyncio.sleep(0, "waited")')).value).toBe("'waited'");
  });

  it('captures prints, children and half characters, in order and as they come', async () => {
    const heard: string[] = [];
    const code =
      'import os, sys\nprint("a"); os.system("echo b; echo c >&2"); print("d", end="", flush=True)\n' +
      'os.write(1, b"\\xc3"); os.write(1, b"\\xa9\\n"); sys.stderr.write("e")';
    const result = await python.eval(code, { onOutput: (stream, text) => heard.push(`${stream}:${text}`) });
    expect(result.stdout).toBe('a\nb\nd\u00e9\n');
    expect(result.stderr).toBe('c\ne');
    expect(heard.length).toBeGreaterThan(2);
  });

  it('carries more output than pipes hold, and cuts what is over the limit', async () => {
    const result = await python.eval('print("x" * 3_000_000); "y" * 100', { maxOutput: 50 });
    expect(result.stdout).toBe('x'.repeat(50));
    expect(result.value).toBe(`'${'y'.repeat(49)}`);
    expect(result.truncated).toBe(true);
    expect((await python.eval('print("x" * 3_000_000)')).stdout).toHaveLength(3_000_001);
  });

  it('describes an exception with the frames of user code', async () => {
    const { error } = await python.eval('def broken():\n  return 1 / 0\nbroken()');
    expect(error).toMatchObject({ type: 'ZeroDivisionError', message: 'division by zero' });
    expect(error?.traceback).toContain('return 1 / 0');
    expect(error?.traceback).not.toContain('python.py');
    expect((await python.eval('x =')).error?.type).toBe('SyntaxError');
  });

  it('survives exit, input, a fork and a closed stdout', async () => {
    expect((await python.eval('import sys; sys.exit(3)')).error).toMatchObject({
      type: 'SystemExit',
      message: '3',
    });
    expect((await python.eval('input()')).error?.type).toBe('EOFError');
    const forked = await python.eval(
      'p = os.fork()\nif p: status = os.waitpid(p, 0)[1]\nelse: print("child")',
    );
    expect(forked).toMatchObject({ error: null, stdout: 'child\n' });
    expect((await python.eval('status')).value).toBe('0');
    await python.eval('sys.stdout.close()');
    expect((await python.eval('print("again")')).stdout).toBe('again\n');
  });

  it('stops at its time limit and goes on', async () => {
    const spin = await python.eval('while True: pass', { timeoutMs: 100 });
    expect(spin).toMatchObject({ timedOut: true, error: { type: 'KeyboardInterrupt' } });
    const sleep = await python.eval('import time\nprint("s", flush=True)\ntime.sleep(60)', {
      timeoutMs: 200,
    });
    expect(sleep).toMatchObject({ timedOut: true, stdout: 's\n' });
    expect(await python.eval('1 + 1', { timeoutMs: 5000 })).toMatchObject({ value: '2', timedOut: false });
  });

  it('insists where the first interrupt is not heard', async () => {
    const deaf =
      'while True:\n  try:\n    time.sleep(60)\n  except KeyboardInterrupt:\n    if warm == 0: raise\n    warm = 0';
    expect(await python.eval(deaf, { timeoutMs: 100 })).toMatchObject({ timedOut: true });
    expect(await python.eval('os.system("sleep 60")', { timeoutMs: 100 })).toMatchObject({ value: '2' });
  });

  it('is interrupted by a signal, and an interrupt that comes too late breaks nothing', async () => {
    const abort = new AbortController();
    const running = python.eval('print("go", flush=True)\ntime.sleep(60)', {
      signal: abort.signal,
      onOutput: () => abort.abort(),
    });
    expect(await running).toMatchObject({ error: { type: 'KeyboardInterrupt' }, timedOut: false });
    for (let i = 0; i < 30; i++) await process.signal('SIGINT');
    expect((await python.eval('1 + 1')).value).toBe('2');
  });

  it('runs calls one after the other', async () => {
    await python.eval('log = []');
    await Promise.all(
      [1, 2, 3].map((n) => python.eval(`log.append(${n}); time.sleep(0.01); log.append(${n})`)),
    );
    expect((await python.eval('log')).value).toBe('[1, 1, 2, 2, 3, 3]');
  });

  it('seeds its generators anew at a new generation, and only then', async () => {
    const seed = 'random.seed(1); tempfile.mktemp(); names = tempfile._name_sequence';
    const draw = async (generation: string) => (await python.eval('random.random()', { generation })).value;
    await python.eval(seed, { generation: newGeneration('a') });
    const first = await draw(newGeneration('a'));
    await python.eval(seed, { generation: newGeneration('a') });
    expect(await draw(newGeneration('a'))).toBe(first);
    await python.eval(seed, { generation: newGeneration('a') });
    expect(await draw(newGeneration('b'))).not.toBe(first);
    expect(
      (await python.eval('tempfile._name_sequence is names', { generation: newGeneration('b') })).value,
    ).toBe('False');
  });

  it('takes environment for this and later calls', async () => {
    expect((await python.eval('os.environ["FOO"]', { env: { FOO: 'bar' } })).value).toBe("'bar'");
    expect((await python.eval('os.environ["FOO"]')).value).toBe("'bar'");
  });

  it('can be followed by another reader, amid a half-written line', async () => {
    await python.close();
    const raw = await session.attach(process.handle, { from: 'now', stdin: true });
    raw.stdin?.write('{"type":"eval","id":"x","co');
    const again = await openInterpreter(session, process.handle);
    expect(await again.ready()).toMatchObject({ language: 'python' });
    expect((await again.eval('y')).value).toBe('5');
    python = again;
  });

  it('takes the environment of its machine over once', async () => {
    const identity = { generation: 'a'.repeat(32), env: { OWN: 'machine' } };
    await python.close();
    const first = await openInterpreter(session, process.handle, identity);
    expect((await first.eval('os.environ["OWN"]')).value).toBe("'machine'");
    await first.eval('os.environ["OWN"] = "code"');
    await first.close();
    python = await openInterpreter(session, process.handle, identity);
    expect((await python.eval('os.environ["OWN"]')).value).toBe("'code'");
  });

  it('reports its own death', async () => {
    await expect(python.eval('os._exit(7)')).rejects.toMatchObject({ code: 'interpreter_died' });
    await expect(python.eval('1')).rejects.toThrow('exit code 7');
  });
});

describe.skipIf(!agentIsBuilt)('node', () => {
  let node: Interpreter;

  beforeAll(async () => {
    const process = await start(['sh', `${drivers}node.sh`, '--init', 'globalThis.warm = 41']);
    node = await openInterpreter(session, process.handle);
  });

  it('says what it is', async () => {
    expect(await node.ready()).toMatchObject({ language: 'node', version: expect.stringMatching(/^\d+\./) });
  });

  it('gives the value of the last expression, and keeps its names', async () => {
    expect((await node.eval('warm + 1')).value).toBe('42');
    expect((await node.eval('const a = 1; function f() { return a }')).value).toBeNull();
    expect((await node.eval('f()')).value).toBe('1');
    expect((await node.eval('({ b: 2 })')).value).toBe('{ b: 2 }');
    expect((await node.eval('{ b: 2 }')).value).toBe('{ b: 2 }');
  });

  it('awaits at top level', async () => {
    expect((await node.eval('await Promise.resolve(3)')).value).toBe('3');
    expect((await node.eval('const c = await Promise.resolve(4);\nc + 1')).value).toBe('5');
    expect((await node.eval('c')).value).toBe('4');
    expect((await node.eval('await Promise.reject(new TypeError("no"))')).error?.type).toBe('TypeError');
    expect((await node.eval('const os = await import("node:os")\nos.EOL')).value).toBe("'\\n'");
  });

  it('captures console and children in order', async () => {
    const code =
      'console.log("a"); require("child_process").execSync("echo b; echo c >&2", { stdio: "inherit" }); console.log("d"); console.error("e")';
    expect(await node.eval(code)).toMatchObject({ stdout: 'a\nb\nd\n', stderr: 'c\ne\n', error: null });
    expect((await node.eval('process.stdout.write("x".repeat(1_000_000))')).stdout).toHaveLength(1_000_000);
  });

  it('describes an error with the frames of user code', async () => {
    const { error } = await node.eval('function broken() { null.x }\nbroken()');
    expect(error?.type).toBe('TypeError');
    expect(error?.traceback).toContain('at broken');
    expect(error?.traceback).not.toContain('node.mjs');
    expect((await node.eval('process.exit(3)')).error).toMatchObject({ type: 'SystemExit', message: '3' });
  });

  it('stops at its time limit, computing or waiting, and goes on', async () => {
    const interrupted = { timedOut: true, error: { type: 'KeyboardInterrupt' } };
    expect(await node.eval('for (;;) {}', { timeoutMs: 100 })).toMatchObject(interrupted);
    expect(await node.eval('await new Promise(() => {})', { timeoutMs: 100 })).toMatchObject(interrupted);
    expect((await node.eval('1 + 1')).value).toBe('2');
  });

  it('survives errors that nobody caught', async () => {
    await node.eval(
      'setTimeout(() => { throw new Error("late") }, 20); Promise.reject(new Error("later")); 0',
    );
    const later = await node.eval('await new Promise((r) => setTimeout(r, 60))');
    expect(later.stderr).toMatch(/late/);
    expect((await node.eval('1 + 1')).value).toBe('2');
  });

  it('takes its random numbers from the kernel', async () => {
    const code = '[Math.random(), crypto.randomUUID(), require("crypto").randomInt(3, 9)]';
    expect((await node.eval(code)).value).toMatch(/^\[ 0\.\d+(e-\d+)?, '[0-9a-f-]{36}', [3-8] \]$/);
  });
});
