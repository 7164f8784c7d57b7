/**
 * Finds the daemon, or starts one. It is started as a process of its own and never imported: it outlives the command that needed it,
 * and ends by itself after idle minutes without sandboxes.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, statSync, watch } from 'node:fs';
import { connect } from 'node:net';
import { dirname, join, resolve } from 'node:path';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { homeFiles, stateDirectory } from '@forkd/api';
import { CliError } from './failure.js';

/** Idle seconds after which a daemon that the CLI started ends. */
const idleSecs = 600;
/** Milliseconds that a daemon has from its start until it answers. It may have sandboxes to adopt. */
const startMs = 60_000;
/** Milliseconds that a daemon has to end when asked to. */
const stopMs = 20_000;

/** The checkout that this program is in. */
export const checkout = fileURLToPath(new URL('../../../', import.meta.url));
/** Program of the daemon, in this checkout. */
export const daemonProgram = join(checkout, 'packages/controller/bin/daemon.mjs');

/** A daemon that answers. */
export interface RunningDaemon {
  /** Set when this process started it. */
  readonly child?: ChildProcess;
}

/** What a daemon says on the pipe that it was given, once. */
type ReadyMessage =
  | { type: 'ready' }
  | { type: 'exists' }
  | { type: 'failed'; error: { error?: string; message?: string; remedy?: string } };

/** The state directory of this user, absolute. */
export function homeDirectory(env: NodeJS.ProcessEnv = process.env): string {
  const home = stateDirectory(env);
  if (home === null) {
    throw new CliError(
      'refused',
      'there is no place for the state directory: none of FORKD_HOME, XDG_STATE_HOME and HOME is set',
      'set FORKD_HOME to a directory that this user may write to',
    );
  }
  return resolve(home);
}

/**
 * Makes sure that a daemon answers on the socket of `home`. Of two that are started at once, one wins and both callers get it.
 *
 * @param program the daemon's; another only in tests
 * @throws CliError when it cannot be started; with the reason that it gave
 */
export async function ensureDaemon(
  home: string,
  signal?: AbortSignal,
  program: string = daemonProgram,
): Promise<RunningDaemon> {
  const socket = join(home, homeFiles.socket);
  if (await answers(socket)) return {};
  const log = openLog(home);
  const child = start(program, home, log.fd);
  closeSync(log.fd);
  const slow = setTimeout(() => process.stderr.write('starting the daemon ...\n'), 1000);
  try {
    const message = await firstMessage(child, signal);
    if (message?.type === 'ready') {
      release(child);
      return { child };
    }
    if (message?.type === 'failed') {
      const { error, message: text, remedy } = message.error;
      throw new CliError('refused', `the daemon did not start: ${error ?? text}`, remedy);
    }
    // Another one holds the lock, or this one died: if another answers soon, all is well.
    if (await appears(socket, message?.type === 'exists' ? startMs : 0, signal)) return {};
    throw new CliError(
      'failed',
      `the daemon ended before it was ready${await endOf(child)}${lastWords(log.path, log.size)}`,
      `read ${log.path}, and run "forkd doctor"`,
    );
  } catch (error) {
    // Nothing of ours stays behind when the caller has given up.
    if (signal?.aborted) await stopDaemon(child);
    throw error;
  } finally {
    clearTimeout(slow);
  }
}

/** Ends a daemon that this process started, and waits until it is gone. */
export async function stopDaemon(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.ref();
  const ended = new Promise<void>((done) => child.once('exit', () => done()));
  child.kill('SIGTERM');
  const hard = setTimeout(() => child.kill('SIGKILL'), stopMs);
  await ended;
  clearTimeout(hard);
}

/** Whether somebody accepts connections on this socket. */
export function answers(socket: string): Promise<boolean> {
  return new Promise((done) => {
    const connection = connect(socket);
    connection.setTimeout(5000);
    connection.on('connect', () => finish(true));
    connection.on('error', () => finish(false));
    connection.on('timeout', () => finish(false));
    function finish(result: boolean): void {
      connection.destroy();
      done(result);
    }
  });
}

function start(program: string, home: string, log: number): ChildProcess {
  if (!existsSync(program)) {
    throw new CliError('failed', `the daemon is not built: ${program} is missing`, 'run "npm run build"');
  }
  const args = [program, 'serve', '--idle-secs', String(idleSecs)];
  const child = spawn(process.execPath, args, {
    // A session of its own: ctrl-C in this terminal is not for it.
    detached: true,
    cwd: home,
    stdio: ['ignore', log, log, 'pipe'],
    env: { ...process.env, FORKD_HOME: home, FORKD_READY_FD: '3' },
  });
  return child;
}

function release(child: ChildProcess): void {
  (child.stdio[3] as Readable).destroy();
  child.unref();
}

/** The line that the daemon writes; undefined when it ended without one. */
function firstMessage(child: ChildProcess, signal?: AbortSignal): Promise<ReadyMessage | undefined> {
  return new Promise((done, fail) => {
    const pipe = child.stdio[3] as Readable;
    const deadline = setTimeout(() => {
      child.kill('SIGTERM');
      fail(
        new CliError('timeout', `the daemon was not ready within ${startMs / 1000} s`, 'run "forkd doctor"'),
      );
    }, startMs);
    const abort = () => {
      fail(new CliError('cancelled', 'cancelled while the daemon was starting'));
    };
    signal?.addEventListener('abort', abort, { once: true });
    const settle = (message: ReadyMessage | undefined) => {
      clearTimeout(deadline);
      signal?.removeEventListener('abort', abort);
      done(message);
    };
    let text = '';
    pipe.setEncoding('utf8');
    pipe.on('error', () => undefined);
    pipe.on('data', (chunk: string) => {
      text += chunk;
      if (!text.includes('\n')) return;
      settle(parse(text.slice(0, text.indexOf('\n'))));
    });
    pipe.on('end', () => settle(undefined));
    child.on('error', (error) => fail(new CliError('failed', `cannot start the daemon: ${error.message}`)));
  });
}

function parse(line: string): ReadyMessage | undefined {
  try {
    return JSON.parse(line) as ReadyMessage;
  } catch {
    return undefined;
  }
}

/** Resolves once the socket answers, or false when it has not within `ms`. Woken by changes in its directory. */
async function appears(socket: string, ms: number, signal?: AbortSignal): Promise<boolean> {
  if (ms === 0) return answers(socket);
  const deadline = AbortSignal.any([AbortSignal.timeout(ms), ...(signal ? [signal] : [])]);
  return new Promise((done) => {
    let again: NodeJS.Timeout | undefined;
    const watcher = watch(dirname(socket), () => void check());
    const stop = (result: boolean) => {
      clearTimeout(again);
      watcher.close();
      deadline.removeEventListener('abort', giveUp);
      done(result);
    };
    const giveUp = () => stop(false);
    deadline.addEventListener('abort', giveUp);
    async function check(): Promise<void> {
      clearTimeout(again);
      if (await answers(socket)) stop(true);
      // A socket shows up when it is bound, and accepts when it listens: of that there is no event.
      else if (existsSync(socket) && !deadline.aborted) again = setTimeout(check, 50);
    }
    void check();
  });
}

/** Opens the daemon's log, making the state directory when there is none. */
function openLog(home: string): { fd: number; path: string; size: number } {
  const path = join(home, homeFiles.log);
  try {
    mkdirSync(home, { recursive: true, mode: 0o700 });
    const fd = openSync(path, 'a', 0o600);
    return { fd, path, size: statSync(path).size };
  } catch (error) {
    throw new CliError(
      'refused',
      `the state directory ${home} cannot be used: ${(error as Error).message}`,
      'make it writable for this user, or set FORKD_HOME to another directory',
      error,
    );
  }
}

/** How a daemon that has closed its pipe ended, for people; empty where that is not known within a second. */
async function endOf(child: ChildProcess): Promise<string> {
  if (child.exitCode === null && child.signalCode === null)
    await once(child, 'exit', { signal: AbortSignal.timeout(1000) }).catch(() => undefined);
  const { exitCode, signalCode } = child;
  return signalCode ? ` (${signalCode})` : exitCode === null ? '' : ` (exit code ${exitCode})`;
}

function lastWords(path: string, from: number): string {
  try {
    const lines = readFileSync(path).subarray(from).toString('utf8').trim().split('\n');
    return lines[0] ? `; it said: ${lines.slice(-5).join('\n')}` : '';
  } catch {
    return '';
  }
}
