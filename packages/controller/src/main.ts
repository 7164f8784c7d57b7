/**
 * The daemon as a program: `node main.js serve [--home DIR] [--bind HOST:PORT|none] [--token-file FILE] [--idle-secs N] [--native-dir DIR]
 * [--templates-dir DIR] [--standby-process N] [--standby-primed N] [--no-standby] [--engine ENGINE]`.
 *
 * With FORKD_READY_FD set, one line of JSON on that descriptor tells the parent how the start went: `{"type":"ready","socket","pid"}`,
 * `{"type":"exists","pid"}` when another daemon has the state directory, `{"type":"failed","error"}`.
 */
import { closeSync, writeSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { quoteValue, stateDirectory } from '@forkd/api';
import { defaultStandby, engineNames } from '@forkd/engine';
import { type Daemon, type ServeOptions, serve } from './daemon.js';
import { ApiError, toApiError } from './errors.js';

const checkout = fileURLToPath(new URL('../../..', import.meta.url));

/** Reads the command line. @throws ApiError invalid_argument */
export function parseServeArguments(args: readonly string[], env: NodeJS.ProcessEnv): ServeOptions {
  const { values, positionals } = parse(args);
  if (positionals.length !== 1 || positionals[0] !== 'serve') {
    throw invalid('command', `${quoteValue(positionals.join(' '))} is not "serve"`);
  }
  const home = values.home ?? stateDirectory(env);
  if (home === null) {
    throw new ApiError('home_unusable', {
      path: '(none)',
      problem: 'none of FORKD_HOME, XDG_STATE_HOME and HOME is set',
    });
  }
  const idleText = values['idle-secs'] ?? '0';
  if (!/^\d{1,9}$/.test(idleText))
    throw invalid('idle-secs', `${quoteValue(idleText)} is not a number of seconds`);
  return {
    home: resolve(home),
    nativeDir: resolve(values['native-dir'] ?? resolve(checkout, 'build/native')),
    templatesDir: resolve(values['templates-dir'] ?? resolve(checkout, 'templates')),
    idleSecs: Number(idleText),
    ...(values.bind !== undefined && { bind: values.bind }),
    ...standbyOf(values),
    ...engineOf(values.engine),
    ...(values['token-file'] !== undefined && { tokenFile: resolve(values['token-file']) }),
  };
}

/** `auto` is what an absent option says, too. */
function engineOf(text: string | undefined): Pick<ServeOptions, 'engine'> {
  if (text === undefined || text === 'auto') return {};
  const engine = engineNames.find((name) => name === text);
  if (engine === undefined)
    throw invalid('engine', `${quoteValue(text)} is not one of auto, ${engineNames.join(', ')}`);
  return { engine };
}

/** Most that may be made ahead of demand, of each kind for each shape or snapshot. */
const MOST_STANDBY = 64;

function standbyOf(values: ReturnType<typeof parse>['values']): Pick<ServeOptions, 'standby'> {
  if (values['no-standby']) return { standby: { process: 0, primed: 0 } };
  const count = (name: 'standby-process' | 'standby-primed', otherwise: number): number => {
    const text = values[name];
    if (text === undefined) return otherwise;
    if (!/^\d{1,2}$/.test(text) || Number(text) > MOST_STANDBY)
      throw invalid(name, `${quoteValue(text)} is not a number from 0 to ${MOST_STANDBY}`);
    return Number(text);
  };
  return {
    standby: {
      process: count('standby-process', defaultStandby.process),
      primed: count('standby-primed', defaultStandby.primed),
    },
  };
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        home: { type: 'string' },
        bind: { type: 'string' },
        'token-file': { type: 'string' },
        'idle-secs': { type: 'string' },
        'standby-process': { type: 'string' },
        'standby-primed': { type: 'string' },
        'no-standby': { type: 'boolean' },
        engine: { type: 'string' },
        'native-dir': { type: 'string' },
        'templates-dir': { type: 'string' },
      },
    });
  } catch (error) {
    throw invalid('arguments', error instanceof Error ? error.message : String(error));
  }
}

function invalid(field: string, problem: string): ApiError {
  return new ApiError('invalid_argument', { field, problem });
}

/** Runs it with the arguments of this process. */
export async function main(): Promise<void> {
  process.umask(0o077);
  let daemon: Daemon;
  try {
    const options = parseServeArguments(process.argv.slice(2), process.env);
    // Relative paths are resolved: from here on no directory is kept from being removed.
    process.chdir('/');
    daemon = await serve(options);
  } catch (error) {
    fail(error);
    return;
  }
  process.on('uncaughtException', (error) => {
    daemon.log.fatal({ err: error }, 'a defect: the daemon ends at once; sandboxes live on');
    process.exit(70);
  });
  process.on('unhandledRejection', (error) => {
    daemon.log.error({ err: error }, 'a defect: a failure that nobody awaited');
  });
  let asked = false;
  const stop = () => {
    if (asked) process.exit(130);
    asked = true;
    void daemon.close();
  };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stop);
  const { socket, tcp, home, tcp_problem: problem } = daemon.describe();
  const where = tcp === null ? (problem ?? 'no TCP') : `http://${tcp}`;
  tell({ type: 'ready', socket, pid: process.pid }, `forkd serves ${home} on ${socket} and ${where}`);
  await daemon.closed;
  process.exit(0);
}

function fail(error: unknown): void {
  const { body } = toApiError(error);
  process.exitCode = 1;
  if (body.code === 'daemon_running') tell({ type: 'exists', pid: body.details?.pid ?? null }, text(body));
  else
    tell(
      { type: 'failed', error: { code: body.code, message: body.error, remedy: body.remedy } },
      text(body),
    );
}

function text(body: { error: string; remedy: string }): string {
  return `forkd: ${body.error}\n${body.remedy}`;
}

/** Tells the parent that waits, else the person who reads. */
function tell(message: Record<string, unknown>, line: string): void {
  const fd = Number(process.env.FORKD_READY_FD);
  if (!Number.isInteger(fd) || fd < 3) {
    process.stderr.write(`${line}\n`);
    return;
  }
  try {
    writeSync(fd, `${JSON.stringify(message)}\n`);
    closeSync(fd);
  } catch {
    // The parent has gone: nobody waits.
  }
}

if (process.argv[1] !== undefined && import.meta.filename === process.argv[1]) await main();
