/** The tree of commands. */
import { createRequire } from 'node:module';
import { Command } from 'commander';
import { branchCommand, promoteCommand } from './commands/branch.js';
import { cpCommand } from './commands/cp.js';
import { doctorCommand } from './commands/doctor.js';
import { evalCommand } from './commands/eval.js';
import { execCommand } from './commands/exec.js';
import { exploreCommand } from './commands/explore.js';
import { forkCommand } from './commands/fork.js';
import { logsCommand } from './commands/logs.js';
import { lsCommand } from './commands/ls.js';
import { quickstartCommand } from './commands/quickstart.js';
import { rmCommand } from './commands/rm.js';
import { serveCommand } from './commands/serve.js';
import { shellCommand } from './commands/shell.js';
import { showCommand } from './commands/show.js';
import { snapshotCommand } from './commands/snapshot.js';
import { templateCommand } from './commands/template.js';
import { treeCommand } from './commands/tree.js';
import { exitCodes } from './failure.js';

const { version } = createRequire(import.meta.url)('../package.json') as { version: string };

/** Makes the command line of `forkd`. Errors of usage are thrown as CommanderError after they were printed. */
export function makeProgram(): Command {
  const program = new Command('forkd')
    .description('microVM sandboxes that fork from a warm snapshot')
    .version(version)
    // What follows a remote command belongs to that command.
    .enablePositionalOptions()
    .showHelpAfterError('hint: add --help for usage')
    .addHelpText('after', `\n${footer()}`);
  const commands = [
    quickstartCommand(),
    doctorCommand(),
    templateCommand(),
    snapshotCommand(),
    forkCommand(),
    branchCommand(),
    exploreCommand(),
    promoteCommand(),
    treeCommand(),
    lsCommand(),
    showCommand(),
    execCommand(),
    evalCommand(),
    shellCommand(),
    cpCommand(),
    logsCommand(),
    rmCommand(),
    serveCommand(),
  ];
  for (const command of commands) program.addCommand(command);
  strict(program);
  return program;
}

/** Errors of usage are thrown, on every level. */
function strict(command: Command): void {
  command.exitOverride().copyInheritedSettings(command.parent ?? command);
  for (const child of command.commands) {
    child.copyInheritedSettings(command);
    strict(child);
  }
}

function footer(): string {
  const codes = Object.entries(exitCodes).map(([kind, code]) => `${code} ${kind.replace('_', ' ')}`);
  return [
    'Environment: FORKD_HOME (state directory), FORKD_URL and FORKD_TOKEN (a daemon elsewhere), NO_COLOR.',
    `Exit codes: that of the remote command, else ${codes.join(', ')}.`,
  ].join('\n');
}
