import { Command } from 'commander';
import { action } from '../context.js';
import { CliError } from '../failure.js';
import { runInTerminal } from '../terminal.js';
import { commandOptions, type ExecOptions, withCommandOptions } from './exec.js';

/** The best shell that the image has. */
const loginShell = ['/bin/sh', '-c', 'if [ -x /bin/bash ]; then exec /bin/bash -l; fi; exec /bin/sh -l'];

/** `forkd shell ID`: a terminal in a sandbox. */
export function shellCommand(): Command {
  const command = withCommandOptions(
    new Command('shell')
      .description('open a terminal in a sandbox (ctrl-] three times leaves one that hangs)')
      .argument('<sandbox>', 'id, sb-...')
      .argument('[command...]', 'program and arguments (default: a login shell)')
      .passThroughOptions(),
  );
  return action<[string, string[], ExecOptions]>(command, async (context, id, args, options) => {
    if (context.out.json) {
      throw new CliError(
        'invalid',
        'a terminal cannot be answered as JSON',
        'use "forkd exec --json ID COMMAND"',
      );
    }
    if (!process.stdin.isTTY) {
      throw new CliError(
        'invalid',
        'stdin is not a terminal',
        'use "forkd exec -i ID COMMAND" for input from a pipe',
      );
    }
    const client = await context.client();
    return runInTerminal(client.sandbox(id), args.length > 0 ? args : loginShell, commandOptions(options));
  });
}
