import {
  type BranchMode,
  branchModes,
  maxBranchChildren,
  type SandboxInfo,
  type SnapshotInfo,
} from '@forkd/api';
import { Command, Option } from 'commander';
import { wholeNumber } from '../arguments.js';
import { action, type Context } from '../context.js';
import { CliError, exitCodes } from '../failure.js';
import { bytes, duration, oneLine } from '../format.js';

interface Options {
  children?: number;
  tag?: string;
  mode?: BranchMode;
  wait: boolean;
}

/** `forkd branch ID`: captures a running sandbox. Prints the id of the snapshot; with -n those of the children, one a line. */
export function branchCommand(): Command {
  const command = new Command('branch')
    .description('capture a running sandbox into a snapshot, without stopping it; prints its id')
    .argument('<sandbox>', 'id, sb-...')
    .option(
      '-n, --children <n>',
      'start as many children of it, and print their ids',
      wholeNumber('-n', 1, maxBranchChildren),
    )
    .option('-t, --tag <tag>', 'tag of the snapshot')
    .addOption(new Option('--mode <mode>', 'how memory is captured (default: live)').choices(branchModes))
    .option('--no-wait', 'do not wait until the snapshot is written');
  return action<[string, Options]>(command, async (context, id, options) => {
    const { tag, mode, children, wait } = options;
    const { signal } = context;
    if (children !== undefined && !wait)
      throw new CliError(
        'invalid',
        '-n and --no-wait contradict each other: children need a snapshot that is ready',
        'leave out one of them, and fork later: forkd fork TAG -n N',
      );
    const sandbox = (await context.client()).sandbox(id);
    if (children === undefined) {
      const snapshot = await sandbox.branch({ tag, mode, wait, signal });
      context.out.answer(snapshot, () => snapshot.id);
      tell(context, snapshot);
      return 0;
    }
    const { snapshot, sandboxes, failures } = await sandbox.fork(children, { tag, mode, signal });
    const infos: (SandboxInfo | undefined)[] = sandboxes.map((child) => child.lastInfo);
    context.out.answer({ snapshot, sandboxes: infos, failures }, () =>
      sandboxes.map((child) => child.id).join('\n'),
    );
    tell(context, snapshot);
    for (const { index, error } of failures) context.out.note(`error: child ${index}: ${error.error}`);
    return failures.length === 0 ? 0 : exitCodes.failed;
  });
}

function tell({ out }: Context, snapshot: SnapshotInfo): void {
  const { tags, tag, id, mode, mode_reason, pause_ms, diff_logical_bytes, status } = snapshot;
  const name = tags[0] ?? (tag === id ? id : tag);
  const size = diff_logical_bytes === undefined ? '' : `, ${bytes(diff_logical_bytes)} changed`;
  out.note(`${name}: ${status}, ${mode ?? ''}, paused for ${duration(pause_ms)}${size}`);
  if (mode_reason !== undefined)
    out.note(`note: its changes were copied in the pause: ${oneLine(mode_reason)}`);
}

/** `forkd promote CHILD --over ID`. */
export function promoteCommand(): Command {
  const command = new Command('promote')
    .description('let a sandbox take the place of another one, which is branched and then removed')
    .argument('<sandbox>', 'the one that is kept, sb-...')
    .requiredOption('--over <sandbox>', 'the one whose place it takes; its id means the other from then on');
  return action<[string, { over: string }]>(command, async (context, id, { over }) => {
    const reply = await (await context.client()).sandbox(id).promote(over, context.signal);
    context.out.answer(reply, () => reply.sandbox.id);
    context.out.note(
      `${over} now means ${reply.sandbox.id}; what it was is in snapshot ${reply.snapshot.id}`,
    );
    return 0;
  });
}
