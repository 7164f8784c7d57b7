import type { SnapshotDetail, SnapshotInfo } from '@forkd/api';
import { Command } from 'commander';
import { action } from '../context.js';
import { exitCodes } from '../failure.js';
import { age, bytes, duration, oneLine } from '../format.js';
import { facts, table } from '../output.js';

/** `forkd snapshot ls|show|rm|tag|gc|flatten|verify`. */
export function snapshotCommand(): Command {
  const group = new Command('snapshot').description(
    'snapshots: captured states that sandboxes continue from',
  );
  group.addCommand(
    action(new Command('ls').description('list snapshots'), async (context) => {
      const list = await (await context.client()).snapshots.list(context.signal);
      context.out.answer(list, snapshotTable);
      return 0;
    }),
  );
  group.addCommand(
    action<[string]>(named('show', 'show a snapshot'), async (context, ref) => {
      const detail = await (await context.client()).snapshots.get(ref, context.signal);
      context.out.answer(detail, snapshotFacts);
      return 0;
    }),
  );
  group.addCommand(
    action<[string, { cascade?: boolean }]>(
      named('rm', 'remove a snapshot and its tags').option(
        '--cascade',
        'also all snapshots that stand on it',
      ),
      async (context, ref, { cascade }) => {
        const { snapshots } = await context.client();
        if (cascade) {
          const report = await snapshots.removeWithDependents(ref, context.signal);
          context.out.answer(report, ({ removed }) => removed.join('\n'));
        } else {
          await snapshots.remove(ref, context.signal);
          context.out.answer({ removed: ref }, () => ref);
        }
        return 0;
      },
    ),
  );
  group.addCommand(
    action<[string, string, { move?: boolean }]>(
      named('tag', 'give a snapshot one more tag')
        .argument('<tag>', 'the new tag')
        .option('--move', 'take it from the snapshot that has it'),
      async (context, ref, tag, { move }) => {
        const { snapshots } = await context.client();
        const info = await snapshots.tag(ref, tag, { move: move === true, signal: context.signal });
        context.out.answer(info, ({ id }) => id);
        return 0;
      },
    ),
  );
  group.addCommand(
    action<[{ dryRun?: boolean }]>(
      new Command('gc')
        .description(
          'remove snapshots that have no tag and that nothing needs, and disks of setups that no template with a tag is built on; prints ids of snapshots',
        )
        .option('--dry-run', 'only say which'),
      async (context, { dryRun }) => {
        const { snapshots } = await context.client();
        const report = await snapshots.gc({ dryRun: dryRun === true, signal: context.signal });
        context.out.answer(report, ({ removed }) => removed.join('\n'));
        const { removed, setup_disks: disks = 0, freed_bytes: freedBytes } = report;
        const freed = `${removed.length} snapshots, ${disks} disks of setups, ${bytes(freedBytes)}`;
        context.out.note(dryRun ? `would be removed: ${freed}` : `removed: ${freed}`);
        return 0;
      },
    ),
  );
  group.addCommand(
    action<[string]>(
      named('flatten', 'let a branch stand alone, on no other snapshot; prints its id'),
      async (context, ref) => {
        const detail = await (await context.client()).snapshots.flatten(ref, context.signal);
        context.out.answer(detail, ({ id }) => id);
        context.out.note(
          `memory ${bytes(detail.memory_physical_bytes)}, disk ${bytes(detail.disk_physical_bytes)}`,
        );
        return 0;
      },
    ),
  );
  group.addCommand(
    action<[string]>(
      named('verify', 'read every byte of a snapshot against its hash'),
      async (context, ref) => {
        const report = await (await context.client()).snapshots.verify(ref, context.signal);
        context.out.answer(report, ({ id, ok, problems, bytes_read }) =>
          ok
            ? `${id} is intact (${bytes(bytes_read)} read)`
            : [`${id} is damaged:`, ...problems].join('\n  '),
        );
        if (!report.ok) context.out.note('hint: build its template again: forkd template build NAME');
        return report.ok ? 0 : exitCodes.refused;
      },
    ),
  );
  return group;
}

function named(name: string, description: string): Command {
  return new Command(name).description(description).argument('<snapshot>', 'tag or id of a snapshot');
}

function snapshotTable(list: readonly SnapshotInfo[]): string {
  const head = ['SNAPSHOT', 'TAGS', 'STATUS', 'CREATED', 'ACCEL', '>MEMORY', '>SANDBOXES'];
  const rows = list.map((snapshot) => [
    snapshot.id,
    snapshot.tags.join(' ') || '-',
    snapshot.status === 'ready' && !snapshot.bootable ? 'not for this host' : snapshot.status,
    age(snapshot.created_at_unix),
    snapshot.accelerator,
    `${snapshot.memory_mib} MiB`,
    String(snapshot.sandboxes),
  ]);
  return table(head, rows);
}

function snapshotFacts(it: SnapshotDetail): string {
  return facts([
    ['snapshot', it.id],
    ['tags', it.tags.join(' ') || '-'],
    ['status', it.status],
    ['durable', it.durable ? 'yes' : 'no: it has not been synced to disk'],
    ['can be forked here', it.bootable ? 'yes' : `no: ${oneLine(it.warning ?? 'unknown')}`],
    ['created', age(it.created_at_unix)],
    ['template', it.template],
    ['branched from', it.branched_from],
    ['stands on', it.parent_tag && `${it.parent_tag} (${it.chain_depth} below)`],
    ['captured', it.mode && `${it.mode}, paused for ${duration(it.pause_ms)}`],
    ['engine', `${it.engine} ${it.engine_version ?? ''}, ${it.accelerator}`],
    ['machine', `${it.memory_mib} MiB, ${it.vcpus} vCPU`],
    ['interpreters', it.interpreters.join(' ') || '-'],
    ['memory on disk', `${bytes(it.memory_physical_bytes)} of ${bytes(it.memory_logical_bytes)}`],
    ['device state', bytes(it.vmstate_bytes)],
    ['image', it.image_bytes === undefined ? undefined : bytes(it.image_bytes)],
    ['disk', bytes(it.disk_physical_bytes)],
    ['in use by', it.dependents.join(' ') || '-'],
    ['directory', it.dir],
  ]);
}
