import { spawn } from 'node:child_process';
import { engineNames } from '@forkd/api';
import { Command, Option } from 'commander';
import { seconds } from '../arguments.js';
import { daemonProgram, homeDirectory } from '../daemon.js';
import { CliError } from '../failure.js';

interface ServeOptions {
  bind?: string;
  tokenFile?: string;
  idleSecs?: number;
  engine: string;
  standbyProcess?: string;
  standbyPrimed?: string;
  /** False for --no-standby. */
  standby: boolean;
}

/** `forkd serve`: the daemon in the foreground. */
export function serveCommand(): Command {
  return new Command('serve')
    .description('run the daemon in the foreground; it also listens on the socket in the state directory')
    .option('--bind <host:port>', 'address for TCP, with a bearer token (default 127.0.0.1:8889)')
    .option(
      '--token-file <file>',
      'file that holds the token (default: one that is made in the state directory)',
    )
    .option(
      '--idle-secs <secs>',
      'end after this long without sandboxes (default: never)',
      seconds('--idle-secs'),
    )
    .addOption(
      new Option('--engine <engine>', 'what runs builds that do not say')
        .choices(['auto', ...engineNames])
        .default('auto'),
    )
    .option('--standby-process <n>', 'VMMs that are kept waiting for each machine shape (default 2; 0: none)')
    .option(
      '--standby-primed <n>',
      'children that are kept waiting for each snapshot whose template primes (default 2; 0: none)',
    )
    .option('--no-standby', 'keep nothing waiting')
    .option('--json', 'log JSON lines (this is what it does without, too)')
    .action(async (options: ServeOptions) => {
      process.exitCode = await serve([
        ...(options.engine === 'auto' ? [] : ['--engine', options.engine]),
        ...(options.bind === undefined ? [] : ['--bind', options.bind]),
        ...(options.tokenFile === undefined ? [] : ['--token-file', options.tokenFile]),
        ...(options.idleSecs === undefined ? [] : ['--idle-secs', String(Math.ceil(options.idleSecs))]),
        // The daemon knows what it takes.
        ...(options.standbyProcess === undefined ? [] : ['--standby-process', options.standbyProcess]),
        ...(options.standbyPrimed === undefined ? [] : ['--standby-primed', options.standbyPrimed]),
        ...(options.standby ? [] : ['--no-standby']),
      ]);
    });
}

function serve(args: readonly string[]): Promise<number> {
  const child = spawn(process.execPath, [daemonProgram, 'serve', ...args], {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, FORKD_HOME: homeDirectory() },
  });
  // ctrl-C reaches the daemon by itself, being in our group; what is sent to us alone is passed on.
  const ignore = () => undefined;
  const pass = (name: NodeJS.Signals) => child.kill(name);
  process.on('SIGINT', ignore).on('SIGTERM', pass).on('SIGHUP', pass);
  return new Promise((done, fail) => {
    child.on('error', (error) => fail(new CliError('failed', `cannot run the daemon: ${error.message}`)));
    child.on('exit', (code, signal) => {
      process.off('SIGINT', ignore).off('SIGTERM', pass).off('SIGHUP', pass);
      done(code ?? (signal === 'SIGINT' ? 130 : signal === 'SIGTERM' ? 143 : 137));
    });
  });
}
