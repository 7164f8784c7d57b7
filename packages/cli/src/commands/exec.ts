import type { ExecResponse } from '@forkd/api';
import type { Sandbox } from '@forkd/sdk';
import { Command } from 'commander';
import { collectEnv, seconds } from '../arguments.js';
import { action, type Context } from '../context.js';
import { follow, readInput } from '../remote.js';
import { runInTerminal } from '../terminal.js';

export interface ExecOptions {
  env?: Record<string, string>;
  cwd?: string;
  user?: string;
  timeout?: number;
  stdin?: boolean;
  tty?: boolean;
}

/** `forkd exec ID COMMAND...`: runs a command, its streams and exit code passed through. */
export function execCommand(): Command {
  const command = withCommandOptions(
    new Command('exec')
      .description('run a command in a sandbox; its exit code is passed through')
      .argument('<sandbox>', 'id, sb-...')
      .argument('<command...>', 'program and arguments, without a shell in between')
      .passThroughOptions(),
  )
    .option('-i, --stdin', 'pass our stdin to the command (else it reads /dev/null)')
    .option('-t, --tty', 'give it a terminal, as "forkd shell" does')
    .addHelpText('after', '\nWith --json, output is collected and answered as one document.');
  return action<[string, string[], ExecOptions]>(command, async (context, id, args, options) => {
    const client = await context.client();
    const sandbox = client.sandbox(id);
    if (context.out.json) return collect(context, sandbox, args, options);
    if (options.tty) return runInTerminal(sandbox, args, commandOptions(options));
    return follow((signal) =>
      sandbox.run(args, { ...commandOptions(options), stdin: options.stdin === true, signal }),
    );
  });
}

/** Options that exec and shell share. */
export function withCommandOptions(command: Command): Command {
  return command
    .option('-e, --env <NAME=VALUE>', 'environment, added to that of the sandbox (repeatable)', collectEnv)
    .option('-w, --cwd <dir>', "working directory in the guest (default: the user's home)")
    .option('-u, --user <user>', 'user name or uid in the guest')
    .option(
      '--timeout <time>',
      'kill it and all it started after this time, such as 10, 500ms, 2m',
      seconds('--timeout'),
    );
}

/** The options as the SDK has them. */
export function commandOptions(options: ExecOptions) {
  return { env: options.env, cwd: options.cwd, user: options.user, timeoutSecs: options.timeout };
}

async function collect(
  context: Context,
  sandbox: Sandbox,
  args: readonly string[],
  options: ExecOptions,
): Promise<number> {
  const answer: ExecResponse = await sandbox.exec(args, {
    ...commandOptions(options),
    ...(options.stdin && { stdin: await readInput() }),
    signal: context.signal,
  });
  context.out.answer(answer, () => '');
  return answer.exit_code;
}
