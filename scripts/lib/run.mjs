/** Running programs from scripts: stdin closed, output passed on or collected, signals left to the terminal. */
import { spawn, spawnSync } from 'node:child_process';

/** An error whose text is for the user; no stack trace is shown for it. */
export class Failure extends Error {
  /**
   * @param {string} message what went wrong
   * @param {string} [hint] what to do about it
   */
  constructor(message, hint) {
    super(message);
    this.hint = hint;
  }
}

/**
 * Runs a program to its end with output on our own stdout and stderr.
 *
 * @param {string} command
 * @param {readonly string[]} args
 * @param {import('node:child_process').SpawnOptions} [options]
 * @returns {Promise<number>} exit code; 128 + n for death by a signal
 */
export function run(command, args, options = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ['ignore', 'inherit', 'inherit'], ...options });
    // ctrl-C reaches the child as well, being in our process group: it ends, and we report it as usual.
    const wait = () => {};
    const pass = (signal) => child.kill(signal);
    process.on('SIGINT', wait);
    process.on('SIGTERM', pass);
    const done = () => {
      process.off('SIGINT', wait);
      process.off('SIGTERM', pass);
    };
    child.on('error', (error) => {
      done();
      reject(new Failure(`cannot run ${command}: ${error.message}`));
    });
    child.on('exit', (code, signal) => {
      done();
      resolve(code ?? 128 + (signal === 'SIGINT' ? 2 : signal === 'SIGKILL' ? 9 : 15));
    });
  });
}

/**
 * Runs a short program and collects what it says.
 *
 * @param {string} command
 * @param {readonly string[]} args
 * @returns {{ok: boolean, missing: boolean, stdout: string, stderr: string}}
 */
export function ask(command, args, env = process.env) {
  const result = spawnSync(command, args, {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: 120_000,
    env,
  });
  return {
    ok: result.status === 0,
    missing: result.error?.code === 'ENOENT',
    stdout: result.stdout ?? '',
    stderr: result.stderr ?? '',
  };
}

/**
 * Calls `body`, prints a {@link Failure} as error and hint.
 *
 * @param {() => Promise<number>} body answers an exit code
 * @returns {Promise<number>}
 */
export async function reportFailure(body) {
  try {
    return await body();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    console.error(`error: ${error.message}`);
    if (error.hint) console.error(`hint: ${error.hint}`);
    return 1;
  }
}
