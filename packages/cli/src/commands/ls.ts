import type { SandboxInfo } from '@forkd/api';
import { Command } from 'commander';
import { action } from '../context.js';
import { age, bytes } from '../format.js';
import { table } from '../output.js';

/** `forkd ls`: sandboxes. */
export function lsCommand(): Command {
  const command = new Command('ls')
    .description('list sandboxes')
    .option('-m, --memory', 'measure the memory of each, which takes time')
    .option('-q, --quiet', 'ids only');
  return action<[{ memory?: boolean; quiet?: boolean }]>(command, async (context, options) => {
    const client = await context.client();
    const memory = options.memory === true;
    const list = await client.sandboxes.list({ memory, signal: context.signal });
    context.out.answer(list, () =>
      options.quiet ? list.map(({ id }) => id).join('\n') : sandboxTable(list, memory),
    );
    return 0;
  });
}

function sandboxTable(list: readonly SandboxInfo[], memory: boolean): string {
  const head = ['SANDBOX', 'SNAPSHOT', 'STATE', 'CREATED', 'ACCEL', ...(memory ? ['>MEMORY'] : [])];
  const rows = list.map((box) => [
    box.id,
    box.snapshot_tag,
    box.state,
    age(box.created_at_unix),
    box.accelerator,
    ...(memory ? [bytes(box.memory_bytes)] : []),
  ]);
  return table(head, rows);
}
