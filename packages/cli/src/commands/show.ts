import type { SandboxInfo } from '@forkd/api';
import { Command } from 'commander';
import { action } from '../context.js';
import { age, bytes, duration, oneLine } from '../format.js';
import { facts } from '../output.js';

/** `forkd show ID`: one sandbox. */
export function showCommand(): Command {
  const command = new Command('show').description('show a sandbox').argument('<sandbox>', 'id, sb-...');
  return action<[string]>(command, async (context, id) => {
    const client = await context.client();
    const info = await client.sandbox(id).info(context.signal);
    context.out.answer(info, sandboxFacts);
    return 0;
  });
}

function sandboxFacts(box: SandboxInfo): string {
  const { timings, exit } = box;
  const pairs = Object.entries(box.metadata).map(([name, value]) => `${name}=${value}`);
  return facts([
    ['sandbox', box.id],
    ['in place of', box.aliases?.join(' ')],
    ['state', box.state],
    [
      'snapshot',
      box.snapshot_tag === box.snapshot_id ? box.snapshot_id : `${box.snapshot_tag} (${box.snapshot_id})`,
    ],
    ['created', age(box.created_at_unix)],
    ['hostname', oneLine(box.hostname)],
    ['generation', box.generation ?? undefined],
    ['engine', `${box.engine}, ${box.accelerator}`],
    ['machine', `${box.memory_mib} MiB, ${box.vcpus} vCPU`],
    ['memory used', box.memory_bytes === undefined ? undefined : bytes(box.memory_bytes)],
    ['VMM pid', box.pid === null ? undefined : String(box.pid)],
    ['metadata', pairs.length === 0 ? undefined : oneLine(pairs.join(' '))],
    [
      'forked in',
      timings &&
        `${duration(timings.total_ms)} (spawn ${duration(timings.spawn_ms)}, graft ${duration(timings.graft_ms)}, load ${duration(timings.load_ms)}, hello ${duration(timings.hello_ms)})`,
    ],
    ['ended', exit && `${oneLine(exit.reason)}, ${age(exit.at_unix)}`],
    ['last words', exit?.last_words ? oneLine(exit.last_words) : undefined],
  ]);
}
