/** What every command gets: options, output, a signal for ctrl-C, and the daemon's client on demand. */
import { setMaxListeners } from 'node:events';
import { signals } from '@forkd/api';
import { Forkd } from '@forkd/sdk';
import type { Command } from 'commander';
import { ensureDaemon, homeDirectory, type RunningDaemon } from './daemon.js';
import { makeOutput, type Output } from './output.js';

export interface Context {
  readonly out: Output;
  /** Aborted by ctrl-C and SIGTERM, unless the command takes these over. */
  readonly signal: AbortSignal;
  /** The client of a daemon that answers; starts one when none does. */
  client(): Promise<Forkd>;
  /** Set once `client` has started a daemon. */
  daemon(): RunningDaemon | undefined;
}

/**
 * Adds what all commands share to a command, and runs `body` as its action.
 *
 * @param body answers the exit code; undefined is 0
 */
export function action<A extends unknown[]>(
  command: Command,
  body: (context: Context, ...args: A) => Promise<number | undefined>,
): Command {
  return command.option('--json', 'answer JSON').action(async (...given: unknown[]) => {
    // commander hands over arguments, options and the command itself.
    const args = given.slice(0, -1) as A;
    const options = given.at(-2) as { json?: boolean };
    await using context = new CommandContext(options.json === true);
    try {
      process.exitCode = (await body(context, ...args)) ?? 0;
    } catch (error) {
      const death = context.death;
      if (death === undefined) throw error;
      // Whatever broke, it broke since we were told to end.
      context.out.note(`ended by ${death}`);
      process.exitCode = 128 + (signals[death] ?? 0);
    }
  });
}

class CommandContext implements Context, AsyncDisposable {
  readonly out: Output;
  readonly signal: AbortSignal;
  /** The signal that ended us. */
  death: NodeJS.Signals | undefined;
  readonly #interrupt = new AbortController();
  #client: Forkd | undefined;
  #daemon: RunningDaemon | undefined;

  constructor(json: boolean) {
    this.out = makeOutput(json);
    this.signal = this.#interrupt.signal;
    // Requests that run side by side all listen to it.
    setMaxListeners(0, this.signal);
    process.on('SIGINT', this.#stop).on('SIGTERM', this.#stop).on('SIGHUP', this.#stop);
  }

  async client(): Promise<Forkd> {
    if (this.#client === undefined) {
      const isElsewhere = Boolean(process.env.FORKD_URL);
      // Before a daemon is started: an address that cannot be is refused here.
      const client = isElsewhere ? new Forkd() : new Forkd({ home: homeDirectory() });
      if (!isElsewhere) this.#daemon = await ensureDaemon(homeDirectory(), this.signal);
      this.#client = client;
    }
    return this.#client;
  }

  daemon(): RunningDaemon | undefined {
    return this.#daemon;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    process.off('SIGINT', this.#stop).off('SIGTERM', this.#stop).off('SIGHUP', this.#stop);
    await this.#client?.close();
  }

  readonly #stop = (name: NodeJS.Signals): void => {
    this.death ??= name;
    this.#interrupt.abort(new Error(name));
  };
}
