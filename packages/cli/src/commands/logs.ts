import { Command } from 'commander';
import { action } from '../context.js';

/** `forkd logs ID`: last words of guest and VMM. */
export function logsCommand(): Command {
  const command = new Command('logs')
    .description('show the end of the console of a sandbox, and of what its VMM said')
    .argument('<sandbox>', 'id, sb-...');
  return action<[string]>(command, async (context, id) => {
    const client = await context.client();
    const logs = await client.sandbox(id).logs(context.signal);
    context.out.answer(logs, ({ console, vmm }) =>
      [section('console', console), section('vmm', vmm)].join('\n'),
    );
    return 0;
  });
}

function section(title: string, text: string): string {
  // A console that moves the cursor or sets titles must not do so here; line ends and tabs may stay.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it is about
  const safe = text.replace(/\r\n?/g, '\n').replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '');
  return `--- ${title} ---\n${safe.trimEnd() || '(nothing)'}`;
}
