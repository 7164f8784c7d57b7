import { availableParallelism } from 'node:os';
import { engineNames } from '@forkd/api';
import { Command, Option } from 'commander';
import { wholeNumber } from '../arguments.js';
import type { EngineName } from '../build.js';
import { action } from '../context.js';
import { stopDaemon } from '../daemon.js';
import { CliError } from '../failure.js';
import { runStages } from '../progress.js';
import { Demo } from '../quickstart/demo.js';
import { summary } from '../quickstart/summary.js';

interface Options {
  children: number;
  template: string;
  keep?: boolean;
  engine?: EngineName;
}

/** `forkd quickstart`: builds a template, forks children, asks each a question, and cleans up after itself. */
export function quickstartCommand(): Command {
  const command = new Command('quickstart')
    .description('see it work: build the python template, fork 10 children, evaluate numpy in each')
    .option('-n, --children <n>', 'number of children, 1 to 1000', wholeNumber('-n', 1, 1000), 10)
    .option('--template <name>', 'template to build and fork', 'python')
    .addOption(
      new Option('--engine <engine>', 'what runs it (default: the best that works here)').choices([
        ...engineNames,
      ]),
    )
    .option('--keep', 'leave the children running');
  return action<[Options]>(command, async (context, options) => {
    const { signal, out } = context;
    let demo: Demo | undefined;
    let isDone = false;
    try {
      const stages = [
        {
          title: 'Daemon',
          run: async () => {
            demo = new Demo(await context.client(), options.template, signal, options.engine);
            return context.daemon()?.child ? 'started' : 'was running';
          },
        },
        {
          title: `Template ${options.template}`,
          run: (stage: Parameters<Demo['build']>[0]) => theDemo().build(stage),
        },
        { title: `Forking ${options.children} children`, run: () => theDemo().fork(options.children) },
        { title: 'Evaluating in each child', run: () => theDemo().ask(availableParallelism()) },
      ];
      await runStages(stages, out.json);
      const result = await theDemo().result();
      out.answer(result, (value) => `\n${summary(value, out.paint)}`);
      if (!result.all_different) {
        throw new CliError(
          'failed',
          'two children gave the same answer',
          'please report this with the table above',
        );
      }
      isDone = true;
    } finally {
      // Not with our signal: ctrl-C is the reason to clean up, not to leave it.
      if (!(isDone && options.keep)) await demo?.removeChildren();
      const child = context.daemon()?.child;
      if (child && (await demo?.isDaemonIdle())) await stopDaemon(child);
    }
    return 0;

    function theDemo(): Demo {
      if (demo === undefined) throw new Error('the daemon comes first');
      return demo;
    }
  });
}
