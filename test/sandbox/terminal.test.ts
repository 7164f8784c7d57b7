import type { RemoteProcess } from '@forkd/sdk';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Children, fork, sh } from './support.js';

let children: Children;
beforeAll(async () => {
  children = await fork();
});
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
});

/** A terminal that is typed into and whose screen is read. */
class Terminal {
  readonly process: RemoteProcess;
  text = '';
  #seen = 0;
  #wake: () => void = () => undefined;

  constructor(process: RemoteProcess) {
    this.process = process;
    process.stdout.on('data', (chunk: Buffer) => {
      this.text += chunk.toString();
      this.#wake();
    });
  }

  type(text: string): void {
    this.process.stdin?.write(text);
  }

  /** Waits until the screen shows something that it had not shown at the last wait. */
  async shows(pattern: RegExp): Promise<string> {
    const deadline = setTimeout(() => {
      this.process.close();
      this.#wake();
    }, 20_000);
    try {
      for (;;) {
        const match = pattern.exec(this.text.slice(this.#seen));
        if (match) {
          this.#seen += match.index + match[0].length;
          return match[0];
        }
        if (this.process.stdout.destroyed) throw new Error(`${pattern} not in ${JSON.stringify(this.text)}`);
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    } finally {
      clearTimeout(deadline);
    }
  }
}

const open = async (command: string[] = ['sh'], size = { rows: 33, cols: 99 }) =>
  new Terminal(await children.box.run(command, { pty: size, env: { PS1: '> ' } }));

describe('a terminal', () => {
  it('has its size from the start, and tells of a change', async () => {
    const terminal = await open();
    await terminal.shows(/> /);
    terminal.type('stty size\r');
    await terminal.shows(/\n33 99\r\n> /);
    terminal.type("trap 'echo changed' WINCH\r");
    await terminal.shows(/\n> /);
    terminal.process.resize({ rows: 44, cols: 111 });
    terminal.type('stty size\r');
    await terminal.shows(/44 111/);
    terminal.type('exit 5\r');
    expect(await terminal.process.wait()).toMatchObject({ exitCode: 5 });
  });

  it('is one to what runs in it, with output and errors on one screen', async () => {
    const terminal = await open([
      'sh',
      '-c',
      'test -t 0 && test -t 1 && test -t 2 && tty && cat /proc/self/stat | cut -d" " -f7; ls /none',
    ]);
    await terminal.shows(/\/dev\/pts\/\d+\r\n\d+\r\n/);
    await terminal.shows(/\/none/);
    expect(terminal.process.stderr).toBeNull();
    expect((await terminal.process.wait()).exitCode).not.toBe(0);
  });

  it('gives ctrl-C to the foreground, ctrl-Z stops it, fg goes on, ctrl-D ends', async () => {
    const terminal = await open();
    await terminal.shows(/> /);
    terminal.type('sleep 6001; echo code $?\r');
    await terminal.shows(/sleep 6001[^\n]*\n/);
    await sh(children.box, 'while ! ps | grep -q "[s]leep 6001"; do usleep 20000; done');
    terminal.type('\u0003');
    await terminal.shows(/code 130\r\n> |\r\n> /);
    terminal.type('sleep 6002\r');
    await terminal.shows(/sleep 6002[^\n]*\n/);
    await sh(children.box, 'while ! ps | grep -q "[s]leep 6002"; do usleep 20000; done');
    terminal.type('\u001a');
    await terminal.shows(/[Ss]topped/);
    terminal.type('jobs\r');
    await terminal.shows(/[Ss]topped[^\n]*sleep 6002/);
    terminal.type('fg; echo code $?\r');
    await terminal.shows(/\nsleep 6002\r\n/);
    terminal.type('\u0003');
    await terminal.shows(/> /);
    terminal.type('\u0004');
    expect((await terminal.process.wait()).outcome.kind).toBe('exited');
  });

  it('does not echo what is typed blindly', async () => {
    const terminal = await open([
      'sh',
      '-c',
      'stty -echo; printf "secret: "; read -r s; stty echo; echo; echo len ${#s}',
    ]);
    await terminal.shows(/secret: /);
    terminal.type('hunter2\r');
    await terminal.shows(/len 7/);
    expect(terminal.text).not.toContain('hunter2');
    await terminal.process.wait();
  });

  it('carries characters of any language', async () => {
    const terminal = await open(['cat']);
    terminal.type('grüße €𝄞\r');
    await terminal.shows(/grüße €𝄞\r\ngrüße €𝄞\r\n/);
    terminal.type('\u0004');
    expect(await terminal.process.wait()).toMatchObject({ exitCode: 0 });
  });

  it('brings all that was written before the end, though a child keeps it open', async () => {
    const terminal = await open(['sh', '-c', 'trap "" HUP; sleep 6011 & seq 20000; echo last']);
    const exit = await terminal.process.wait();
    expect(exit.exitCode).toBe(0);
    expect(terminal.text.endsWith('20000\r\nlast\r\n')).toBe(true);
    await sh(children.box, 'killall sleep || true');
  });

  it('hangs up on its session when its client goes', async () => {
    const terminal = await open(['sh', '-c', 'sleep 6021']);
    await sh(children.box, 'while ! ps | grep -q "[s]leep 6021"; do usleep 20000; done');
    terminal.process.close();
    await sh(children.box, 'while ps | grep -q "[s]leep 6021"; do usleep 20000; done');
  });

  it('ends with its time', async () => {
    const process = await children.box.run(['sh'], { pty: { rows: 24, cols: 80 }, timeoutSecs: 1 });
    process.stdout.resume();
    expect(await process.wait()).toMatchObject({ outcome: { kind: 'timeout' }, exitCode: 124 });
  });
});
