import { spawn } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { program } from '../support/cli.js';
import { fork } from '../support/sandboxes.js';

/**
 * `forkd shell` on a terminal of `script`, which is typed into: each step waits for a text, then types.
 */
async function converse(
  args: readonly string[],
  steps: readonly [RegExp, string][],
): Promise<{ code: number; output: string }> {
  const line = [process.execPath, program, ...args].map((arg) => `'${arg}'`).join(' ');
  // The size is set before, and the mode of the terminal is shown after.
  const child = spawn(
    'script',
    ['-qec', `stty rows 33 cols 99; ${line}; code=$?; stty -a; exit $code`, '/dev/null'],
    {
      env: { ...process.env, TERM: 'xterm' },
    },
  );
  let output = '';
  let seen = 0;
  const left = [...steps];
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk.toString();
    for (;;) {
      const step = left[0];
      const match = step?.[0].exec(output.slice(seen));
      if (!step || !match) return;
      seen += match.index + match[0].length;
      left.shift();
      child.stdin.write(step[1]);
    }
  });
  const code = await new Promise<number>((resolve) => child.on('close', (code) => resolve(code ?? -1)));
  return { code, output };
}

// BusyBox asks for the position of the cursor after it.
const prompt = /# /;

describe('forkd shell', () => {
  it('is a terminal of our size, passes the exit code, and gives the terminal back', async () => {
    await using box = await fork();
    const { code, output } = await converse(
      ['shell', box.id],
      [
        [prompt, 'stty size; tty\r'],
        [/33 99[\s\S]*\/dev\/[\s\S]*# /, 'exit 6\r'],
      ],
    );
    expect(code).toBe(6);
    expect(output).toMatch(/33 99/);
    // Echo and line mode are on again.
    expect(output).toMatch(/ icanon/);
    expect(output).toMatch(/[^-]echo /);
  });

  it('ctrl-C interrupts the foreground program, not the shell; ctrl-D ends it', async () => {
    await using box = await fork();
    const { code, output } = await converse(
      ['shell', box.id],
      [
        [prompt, 'echo start; sleep 1000\r'],
        [/\nstart\r\n/, '\u0003'],
        [prompt, 'echo $((40 + 2))\r'],
        [/42[\s\S]*# /, '\u0004'],
      ],
    );
    expect(output).toContain('42');
    // That of the last command, which ctrl-C has not been.
    expect(code).toBe(0);
  });

  it('passes output on as it is, so that full-screen programs work', async () => {
    await using box = await fork();
    const { output } = await converse(
      ['shell', box.id, 'sh', '-c', 'stty -opost; printf "one\\ntwo\\n."'],
      [],
    );
    expect(output).toContain('one\ntwo\n.');
  });

  it('can be left when the guest does not answer', async () => {
    await using box = await fork();
    const { code } = await converse(
      ['shell', box.id, 'sh', '-c', 'trap "" INT; echo stuck; sleep 1000'],
      [[/stuck/, '\u001d\u001d\u001d']],
    );
    expect(code).toBe(130);
  });
});
