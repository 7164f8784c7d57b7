import { Command } from 'commander';
import { action } from '../context.js';
import { CliError, printReport, reportOf } from '../failure.js';

/** `forkd rm ID...`: ends sandboxes. One that cannot be removed does not keep the others. */
export function rmCommand(): Command {
  const command = new Command('rm')
    .description('end sandboxes and remove all they had')
    .argument('[sandbox...]', 'ids, sb-...')
    .option('-a, --all', 'all sandboxes of this daemon');
  return action<[string[], { all?: boolean }]>(command, async (context, given, options) => {
    if (options.all === given.length > 0) {
      throw new CliError(
        'invalid',
        'name sandboxes, or give --all, and not both',
        'list them with "forkd ls"',
      );
    }
    if (!options.all && given.length === 0) {
      throw new CliError(
        'invalid',
        'no sandbox was named',
        'name sandboxes, or give --all; list them with "forkd ls"',
      );
    }
    const client = await context.client();
    const ids = options.all
      ? (await client.sandboxes.list({ signal: context.signal })).map(({ id }) => id)
      : [...new Set(given)];
    const results = await Promise.allSettled(ids.map((id) => client.sandboxes.remove(id, context.signal)));
    const removed = ids.filter((_, index) => results[index]?.status === 'fulfilled');
    context.out.answer({ removed }, () => removed.join('\n'));
    let exitCode = 0;
    for (const result of results) {
      if (result.status === 'fulfilled') continue;
      const report = reportOf(result.reason);
      printReport(report, context.out.json);
      exitCode ||= report.exitCode;
    }
    return exitCode;
  });
}
