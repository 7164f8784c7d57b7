import { Command } from 'commander';
import { collectEnv, collectPairs, wholeNumber } from '../arguments.js';
import { action } from '../context.js';
import { exitCodes } from '../failure.js';
import { duration } from '../format.js';

interface Options {
  children: number;
  env?: Record<string, string>;
  meta?: Record<string, string>;
  hostname?: string;
}

/** `forkd fork TAG`: starts children. Their ids go to stdout, one a line. */
export function forkCommand(): Command {
  const command = new Command('fork')
    .description('start sandboxes from a snapshot; prints their ids')
    .argument('<snapshot>', 'tag or id of a snapshot')
    .option('-n, --children <n>', 'number of children, 1 to 1000', wholeNumber('-n', 1, 1000), 1)
    .option('-e, --env <NAME=VALUE>', 'environment of every process in the children (repeatable)', collectEnv)
    .option('--meta <NAME=VALUE>', 'free name and value, shown by "forkd show" (repeatable)', collectPairs)
    .option('--hostname <prefix>', 'children are called PREFIX-0, PREFIX-1, ...');
  return action<[string, Options]>(command, async (context, snapshot, options) => {
    const client = await context.client();
    const started = performance.now();
    const { sandboxes, failures } = await client.fork({
      snapshot,
      n: options.children,
      ...(options.env && { env: options.env }),
      ...(options.meta && { metadata: options.meta }),
      ...(options.hostname && { hostnamePrefix: options.hostname }),
      signal: context.signal,
    });
    const infos = sandboxes.map((sandbox) => sandbox.lastInfo);
    context.out.answer({ sandboxes: infos, failures }, () => sandboxes.map(({ id }) => id).join('\n'));
    const took = duration(performance.now() - started);
    context.out.note(`${sandboxes.length} of ${sandboxes.length + failures.length} children in ${took}`);
    for (const { index, error } of failures) {
      context.out.note(`error: child ${index}: ${error.error}`);
      context.out.note(`hint: ${error.remedy}`);
    }
    return failures.length === 0 ? 0 : exitCodes.failed;
  });
}
