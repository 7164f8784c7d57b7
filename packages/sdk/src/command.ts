/** How commands are given. */
import { quoteValue } from '@forkd/api';
import { clientError } from './errors.js';

/** Program and arguments, or text for `/bin/sh -c`. */
export type Command = readonly string[] | { shell: string };

/** What exec, run and the shell have in common. */
export interface CommandOptions {
  /** Added to the environment of the sandbox. */
  env?: Record<string, string> | undefined;
  /** Working directory in the guest; default the user's home. */
  cwd?: string | undefined;
  /** User name or uid in the guest; default that of the template. */
  user?: string | undefined;
  /** Seconds until the command and all it started are killed. */
  timeoutSecs?: number | undefined;
}

/** The fields of a request that say what to run. */
export function commandBody(command: Command, options: CommandOptions): Record<string, unknown> {
  const what = isArguments(command) ? { args: [...command] } : { shell: command.shell };
  if ('args' in what && what.args.length === 0) {
    throw clientError('invalid_argument', {
      field: 'command',
      problem: `${quoteValue(command)} names no program`,
    });
  }
  return {
    ...what,
    env: options.env,
    cwd: options.cwd,
    user: options.user,
    timeout_secs: options.timeoutSecs,
  };
}

function isArguments(command: Command): command is readonly string[] {
  return Array.isArray(command);
}
