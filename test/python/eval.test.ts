import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { type Children, failureOf, fork, sh } from '../sandbox/support.js';

let children: Children;
beforeAll(async () => {
  children = await fork(1, { snapshot: 'python' });
});
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
});
// A test that failed may have cost the interpreter its life; those after it are about something else.
afterEach(async ({ task }) => {
  if (task.result?.state !== 'fail') return;
  await children[Symbol.asyncDispose]();
  children = await fork(1, { snapshot: 'python' });
});
const run = (code: string, timeoutSecs?: number) => children.box.eval(code, { timeoutSecs });

describe('a value', () => {
  it.each([
    ['1 + 1', '2'],
    ['"a\\n" + "b"', "'a\\nb'"],
    ['x = 5', null],
    ['None', null],
    ['x = 5; x * 2', '10'],
    ['for i in range(3): pass', null],
    ['def f():\n    return 7\n\nf()', '7'],
    ['', null],
    ['# nothing', null],
    ['import math\nmath.pi', '3.141592653589793'],
    ['"grüße €𝄞"', "'grüße €𝄞'"],
    ['b"\\xff\\x00"', "b'\\xff\\x00'"],
    ['float(numpy.array([1.0, 2.0]).sum())', '3.0'],
    ['[\n  1,\n  2,\n]', '[1, 2]'],
    ['import asyncio\nawait asyncio.sleep(0, result=8)', '8'],
  ])('of %j is %s', async (code, result) => {
    expect(await run(code)).toMatchObject({ result, error: null, exit_code: 0, stdout: '', stderr: '' });
  });

  it('of names lasts from call to call', async () => {
    await run('import json\ncounter = 1\ndef add(n):\n    global counter\n    counter += n');
    await run('add(41)');
    expect((await run('json.dumps(counter)')).result).toBe("'42'");
    expect((await run('__name__')).result).toBe("'__main__'");
  });

  it('may be long', async () => {
    const { result } = await run('"x" * 3_000_000');
    expect(result?.length).toBe(3_000_002);
  });
});

describe('output', () => {
  it('goes to its stream, from Python, from children and from C', async () => {
    const result = await run(`
import os, sys, subprocess
print("python out")
print("python err", file=sys.stderr)
os.write(1, b"raw out\\n")
subprocess.run(["sh", "-c", "echo child out; echo child err >&2"])
os.system("echo system out")
"value"`);
    expect(result.result).toBe("'value'");
    expect(result.stdout.split('\n').sort()).toEqual([
      '',
      'child out',
      'python out',
      'raw out',
      'system out',
    ]);
    expect(result.stderr.split('\n').sort()).toEqual(['', 'child err', 'python err']);
  });

  it('of 5 MB is whole, and characters are not torn', async () => {
    const code = 'import sys\nfor i in range(1000): sys.stdout.write("€ü𝄞\\n" * 500)';
    const result = await run(code, 100);
    expect(result.stdout.length).toBe(500_000 * 5);
    expect(result.stdout).toBe('€ü𝄞\n'.repeat(500_000));
  }, 120_000);

  it('is told as it comes', async () => {
    const times: number[] = [];
    const texts: string[] = [];
    const result = await children.box.eval(
      'import time\nfor i in range(3):\n    print(i)\n    time.sleep(0.4)\n9',
      {
        onOutput: (stream, text) => {
          expect(stream).toBe('stdout');
          texts.push(text);
          times.push(performance.now());
        },
      },
    );
    expect(texts.join('')).toBe('0\n1\n2\n');
    expect((times.at(-1) ?? 0) - (times[0] ?? 0)).toBeGreaterThan(600);
    expect(result.result).toBe('9');
  });
});

describe('an exception', () => {
  it('is told with type, message and the frames of the code', async () => {
    const result = await run(
      'def inner():\n    raise ValueError("wrong €")\n\ndef outer():\n    inner()\n\nouter()',
    );
    expect(result).toMatchObject({ result: null, error: 'ValueError: wrong €', exit_code: 1 });
    expect(result.exception).toMatchObject({ type: 'ValueError', message: 'wrong €' });
    const traceback = result.exception?.traceback ?? '';
    expect(traceback).toMatch(/^Traceback \(most recent call last\):/);
    expect(traceback).toContain('line 2, in inner');
    expect(traceback).toContain('raise ValueError("wrong €")');
    expect(traceback).toContain('in outer');
    expect(traceback).not.toContain('python.py');
  });

  it('keeps the output of before', async () => {
    const result = await run('print("before")\n1/0');
    expect(result).toMatchObject({ stdout: 'before\n', error: 'ZeroDivisionError: division by zero' });
  });

  it('of syntax shows the place', async () => {
    const result = await run('x = (1,\ny = 2');
    expect(result.exception?.type).toBe('SyntaxError');
    expect(result.exception?.traceback).toContain('^');
    expect((await run('  indented')).exception?.type).toBe('IndentationError');
    expect((await run('"\\ud800".encode()')).exception?.type).toBe('UnicodeEncodeError');
  });

  it.each([
    ['import sys\nsys.exit(3)', 'SystemExit'],
    ['exit()', 'SystemExit|NameError'],
    ['raise KeyboardInterrupt', 'KeyboardInterrupt'],
    ['def f(): f()\nf()', 'RecursionError'],
    ['class E(Exception):\n    def __str__(self): raise ValueError\nraise E()', 'E'],
    ['raise ExceptionGroup("g", [ValueError(1)])', 'ExceptionGroup'],
    ['class R:\n    def __repr__(self): raise TypeError("no repr")\nR()', 'TypeError'],
  ])('%j does not end the interpreter', async (code, type) => {
    await run('survivor = "here"');
    const result = await run(code);
    expect(result.exit_code).toBe(1);
    expect(result.exception?.type).toMatch(new RegExp(`^(${type})$`));
    expect((await run('survivor')).result).toBe("'here'");
  });
});

describe('input', () => {
  it('is at its end', async () => {
    expect((await run('input()')).exception?.type).toBe('EOFError');
    expect((await run('import sys\nsys.stdin.read()')).result).toBe("''");
  });
});

describe('an eval that is over its time', () => {
  it.each([
    ['while True: pass'],
    ['import time\ntime.sleep(1000)'],
    ['while True:\n    try:\n        time.sleep(1000)\n    except ValueError:\n        pass'],
    ['import subprocess\nsubprocess.run(["sleep", "9001"])'],
    // In C, where no signal is looked at: some tenths of a second a call.
    ['while True: numpy.sort(numpy.random.rand(200_000))'],
    // Deaf for longer than an interrupt waits for, and for less than it takes to be given up.
    [
      'import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\ntime.sleep(3)\n' +
        'signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])\nwhile True: pass',
    ],
  ])('is interrupted, and its variables live: %j', async (code) => {
    await run('import time\nkept = [1, 2]');
    const result = await run(code, 1);
    expect(result).toMatchObject({ timed_out: true, exit_code: 124 });
    expect((await run('kept', 30)).result).toBe('[1, 2]');
  });

  it('keeps the output of before', async () => {
    const result = await run('print("before")\nwhile True: pass', 1);
    expect(result).toMatchObject({ timed_out: true, stdout: 'before\n' });
  });

  it('and will not be interrupted is told so, and the next call says what became of the interpreter', async () => {
    await using own = await fork(1, { snapshot: 'python' });
    const stubborn = 'while True:\n    try:\n        while True: pass\n    except BaseException: pass';
    const first = await own.box.eval(stubborn, { timeoutSecs: 1 }).catch((error: unknown) => error);
    expect(first).toMatchObject(first instanceof Error ? { code: expect.any(String) } : { timed_out: true });
    // Whether it was started anew or is given up: no call hangs.
    const next = await own.box.eval('1 + 1', { timeoutSecs: 5 }).catch((error: unknown) => error);
    if (next instanceof Error) expect(next).toMatchObject({ remedy: expect.stringMatching(/./) });
    expect(await sh(own.box, 'echo usable')).toBe('usable');
  });
});

describe('code that goes far', () => {
  it('may fork: the child does not speak for its parent', async () => {
    const result = await run(`
import os
pid = os.fork()
if pid == 0:
    print("child")
    os._exit(0)
os.waitpid(pid, 0)
print("parent")
pid > 0`);
    expect(result.result).toBe('True');
    expect(result.stdout.split('\n').sort()).toEqual(['', 'child', 'parent']);
    const returning = await run('import os\np = os.fork()\nif p: os.waitpid(p, 0)\np > 0');
    expect(returning.result).toBe('True');
    expect((await run('2 + 2')).result).toBe('4');
  });

  it('may use processes and threads', async () => {
    const result = await run(`
import multiprocessing, threading
def square(n): return n * n
with multiprocessing.get_context("fork").Pool(2) as pool:
    squares = pool.map(square, range(5))
seen = []
t = threading.Thread(target=lambda: (seen.append(1), print("from a thread")))
t.start(); t.join()
(squares, seen)`);
    expect(result).toMatchObject({ result: '([0, 1, 4, 9, 16], [1])', stdout: 'from a thread\n' });
  });

  it('may close and replace what it likes', async () => {
    await run('import sys, os\nsys.stdout.close()\nos.close(2)');
    expect(await run('print("again")')).toMatchObject({ stdout: 'again\n', error: null });
    await run('sys.stdout = None; sys.stderr = open("/dev/null", "w")');
    expect(await run('print("again")')).toMatchObject({ stdout: 'again\n' });
    await run('import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)');
    expect(await run('while True: pass', 1)).toMatchObject({ timed_out: true });
  });

  it('leaves a process in the background that does not hold up the next call', async () => {
    const began = performance.now();
    await run('import subprocess\nbackground = subprocess.Popen(["sh", "-c", "sleep 3; echo late"])');
    expect((await run('1')).result).toBe('1');
    expect(performance.now() - began).toBeLessThan(3000);
    await run('background.kill(); background.wait()');
  });
});

describe('calls', () => {
  it('at once are answered one after the other, each its own', async () => {
    const results = await Promise.all(
      Array.from({ length: 10 }, (_, i) => run(`import time\nprint(${i})\ntime.sleep(0.02)\n${i}`)),
    );
    expect(results.map(({ result, stdout }) => [result, stdout])).toEqual(
      Array.from({ length: 10 }, (_, i) => [`${i}`, `${i}\n`]),
    );
  });

  it('see the environment of the child', async () => {
    await using own = await fork(1, { snapshot: 'python', env: { TASK: 'ünï' } });
    expect((await own.box.eval('import os\nos.environ["TASK"]')).result).toBe("'ünï'");
    expect((await own.box.eval('import socket\nsocket.gethostname()')).result).toBe(
      `'${own.box.lastInfo?.hostname}'`,
    );
  });

  it('of an interpreter that is not there, or was killed, say so', async () => {
    await using own = await fork(1, { snapshot: 'python' });
    expect(await failureOf(own.box.eval('1', { interpreter: 'node' }))).toMatchObject({
      code: 'interpreter_not_found',
    });
    const killed = await own.box
      .eval('import os, signal\nos.kill(os.getpid(), signal.SIGKILL)')
      .catch((e: unknown) => e);
    expect(killed).toMatchObject({ remedy: expect.stringMatching(/./), message: expect.stringMatching(/./) });
    await using plain = await fork(1);
    const none = await failureOf(plain.box.eval('1'));
    expect(none).toMatchObject({ code: 'interpreter_not_found', status: 409 });
  });

  it('that were broken off by their caller are interrupted', async () => {
    const gone = new AbortController();
    const call = children.box.eval(
      'import time\nbroken = 0\nwhile True:\n    broken += 1\n    time.sleep(0.01)',
      {
        signal: gone.signal,
        timeoutSecs: 60,
      },
    );
    call.catch(() => undefined);
    await sh(children.box, 'sleep 0.5');
    gone.abort();
    expect(await failureOf(call)).toMatchObject({ code: 'cancelled' });
    expect((await run('broken > 0')).result).toBe('True');
  });
});
