/** A command in a sandbox on our own terminal: raw mode, size, and the terminal given back on every way out. */
import { spawnSync } from 'node:child_process';
import type { PtySize } from '@forkd/api';
import type { CommandOptions, RemoteProcess, Sandbox } from '@forkd/sdk';
import { CliError } from './failure.js';
import { carry } from './remote.js';

/** ctrl-], pressed {@link escapes} times within a second, leaves a guest that no longer answers. */
const escapeByte = 0x1d;
const escapes = 3;

/**
 * Runs a command on our terminal.
 *
 * @returns its exit code; 130 when the user left, 143 or 129 when we were told to end
 * @throws CliError when stdin is no terminal
 */
export async function runInTerminal(
  sandbox: Sandbox,
  command: readonly string[],
  options: CommandOptions,
): Promise<number> {
  const { stdin } = process;
  if (!stdin.isTTY) {
    throw new CliError(
      'invalid',
      'stdin is not a terminal',
      'use "forkd exec -i ID COMMAND" for input from a pipe',
    );
  }
  const env = { TERM: process.env.TERM || 'xterm', ...options.env };
  const away = new AbortController();
  const remote = await sandbox.run(command, { ...options, env, pty: size(), signal: away.signal });
  let left = 0;
  const leave = (code: number) => {
    left = code;
    away.abort();
  };
  using _terminal = takeTerminal(remote, leave);
  try {
    return (await carry(remote)).exitCode;
  } catch (error) {
    if (left !== 0) return left;
    throw error;
  }
}

/** Takes the terminal over; disposing gives it back, as does any exit of this process that is not SIGKILL. */
function takeTerminal(remote: RemoteProcess, leave: (code: number) => void): Disposable {
  const { stdin, stdout } = process;
  const restore = () => stdin.setRawMode(false);
  const resize = () => remote.resize(size());
  const watchEscape = escapeWatcher(() => leave(130));
  // In raw mode ctrl-C is a byte for the guest; these come from other processes.
  const end = (name: NodeJS.Signals) => leave(name === 'SIGHUP' ? 129 : name === 'SIGINT' ? 130 : 143);
  stdin.setRawMode(true);
  // Node leaves the terminal's own processing of output on, which turns each "\n" of a full-screen program into a new line.
  // Leaving raw mode restores this with the rest.
  spawnSync('stty', ['-opost'], { stdio: ['inherit', 'ignore', 'ignore'] });
  process.on('exit', restore).on('SIGTERM', end).on('SIGHUP', end).on('SIGINT', end);
  stdout.on('resize', resize);
  stdin.on('data', watchEscape);
  // The size may have changed since it was asked for.
  resize();
  return {
    [Symbol.dispose]() {
      stdin.off('data', watchEscape);
      stdout.off('resize', resize);
      process.off('exit', restore).off('SIGTERM', end).off('SIGHUP', end).off('SIGINT', end);
      restore();
    },
  };
}

/** Calls `onEscape` when the escape key was pressed often enough within a second. */
export function escapeWatcher(onEscape: () => void, now: () => number = performance.now.bind(performance)) {
  let pressed: number[] = [];
  return (chunk: Uint8Array) => {
    for (const byte of chunk) {
      if (byte !== escapeByte) {
        pressed = [];
        continue;
      }
      const time = now();
      pressed = [...pressed.filter((at) => time - at < 1000), time];
      if (pressed.length >= escapes) onEscape();
    }
  };
}

function size(): PtySize {
  const { rows, columns } = process.stdout;
  return { rows: rows || 24, cols: columns || 80 };
}
