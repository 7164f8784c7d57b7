/**
 * `npm run bench`: measures the product as a client sees it, prints one table, and with `--json FILE` writes it.
 *
 * @packageDocumentation
 */
import { writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { stateDirectory } from '@forkd/api';
import { findQemu } from '@forkd/engine';
import type { Forkd } from '@forkd/sdk';
import { conditionsOf } from './conditions.js';
import { BenchDaemon } from './daemon.js';
import { type Conditions, printResult } from './report.js';
import { branchRows, namesBranchRows } from './rows/branch.js';
import { coldEval } from './rows/cold.js';
import { forkEval, forkWall, NUMPY_SUM } from './rows/fork-eval.js';
import { idleMemory } from './rows/idle-memory.js';
import { bubblewrapNumpy, gvisorNumpy, havePeer, installPeers } from './rows/peers.js';
import { roundTrips } from './rows/round-trips.js';
import { vmmSpawn } from './rows/vmm-spawn.js';
import { type Row, rowOf, singleRow } from './statistics.js';

const TEMPLATES = fileURLToPath(new URL('../templates/', import.meta.url));

/** Sizes of the two forms: the full one, and one that shows in CI that every row can be measured. */
const full = {
  ...{ n: 30, cold: 5, wall: 100, wallRuns: 3, idle: 50, peers: 10 },
  branch: { pauses: 30, stalls: 10, grandchildren: 15 },
};
const smoke: typeof full = {
  ...{ n: 3, cold: 1, wall: 8, wallRuns: 1, idle: 8, peers: 1 },
  branch: { pauses: 2, stalls: 1, grandchildren: 1 },
};

const { values: options } = parseArgs({
  options: {
    json: { type: 'string' },
    smoke: { type: 'boolean', default: false },
    template: { type: 'string', default: 'python' },
    // Rows of branches alone, by name: `--only 'branch_*'`.
    only: { type: 'string' },
    'install-peers': { type: 'boolean', default: false },
  },
});
const sizes = options.smoke ? smoke : full;
const template = options.template;
const rows: Row[] = [];

/** Keeps a row, and tells of it at once: a full run takes minutes. */
function add(row: Row): Row {
  rows.push(row);
  console.error(`${row.name}: ${row.p50?.toFixed(2) ?? '-'} ${row.unit} (${row.ok} of ${row.n})`);
  return row;
}

function ratio(name: string, above: Row | undefined, below: Row | undefined): void {
  const value = above?.p50 && below?.p50 ? above.p50 / below.p50 : null;
  add(singleRow(name, 'ratio', value, `${above?.name ?? '?'} : ${below?.name ?? '?'}, medians`));
}

async function build(client: Forkd): Promise<void> {
  for await (const event of client.templates.build(template)) {
    if (event.type === 'step' && event.state !== 'running')
      console.error(`build: ${event.title} (${event.state})`);
    if (event.type === 'failed') throw new Error(event.error.error);
  }
}

const load = loadavg()[0]!;
if (options['install-peers']) await installPeers();
const home = process.env.FORKD_BENCH_HOME ?? join(stateDirectory(process.env) ?? '/var/tmp/forkd', 'bench');
await mkdir(home, { recursive: true, mode: 0o700 });
const qemu = await findQemu();

/** Prints what was measured, and ends. */
function finish(conditions: Conditions): never {
  printResult({ conditions, rows });
  if (options.json) writeFileSync(options.json, `${JSON.stringify({ conditions, rows }, null, 2)}\n`);
  process.exit(rows.some((row) => row.failed > 0) ? 1 : 0);
}

if (options.only !== undefined) {
  if (!namesBranchRows(options.only))
    throw new Error(`--only ${options.only} names no row of branches: try --only 'branch_*'`);
  let found: Conditions;
  {
    await using daemon = await BenchDaemon.start(home, { process: 1, primed: 0 });
    const { client } = daemon;
    for await (const event of client.templates.build('busybox'))
      if (event.type === 'failed') throw new Error(event.error.error);
    found = await conditionsOf(client, 'busybox', qemu.version, load);
    add(
      rowOf(
        'vmm_spawn',
        'ms',
        await vmmSpawn(sizes.n, 2048, qemu.path, found.accelerator as 'kvm' | 'tcg'),
        'R0',
      ),
    );
    await branchRows(client, sizes.branch, add, options.only);
  }
  finish(found);
}

let conditions: Conditions;
let memoryMib: number;
{
  await using daemon = await BenchDaemon.start(home, { process: 0, primed: 0 });
  const { client } = daemon;
  await build(client);
  const snapshot = await client.snapshots.get(template);
  memoryMib = snapshot.memory_mib;
  const accelerator = snapshot.accelerator as 'kvm' | 'tcg';
  conditions = await conditionsOf(client, template, qemu.version, load);
  add(rowOf('vmm_spawn', 'ms', await vmmSpawn(sizes.n, memoryMib, qemu.path, accelerator), 'R0'));
  add(rowOf('fork_eval_none', 'ms', await forkEval(client, template, '1+1', sizes.n, null)));
  add(
    rowOf(
      'fork_100_wall',
      'ms',
      await forkWall(client, template, sizes.wall, sizes.wallRuns),
      `${sizes.wall} children`,
    ),
  );
  const idle = await idleMemory(client, template, sizes.idle, sizes.wallRuns);
  add(rowOf('idle_child_private', 'MiB', idle, `by MemAvailable over ${sizes.idle} children`));
}
{
  await using daemon = await BenchDaemon.start(home, { process: 1, primed: 0 });
  add(rowOf('fork_eval_process', 'ms', await forkEval(daemon.client, template, '1+1', sizes.n, 'process')));
}
{
  await using daemon = await BenchDaemon.start(home, { process: 0, primed: 1 });
  const { client } = daemon;
  const primed = add(
    rowOf('fork_eval_primed', 'ms', await forkEval(client, template, '1+1', sizes.n, 'primed')),
  );
  const numpy = add(
    rowOf('fork_eval_primed_numpy', 'ms', await forkEval(client, template, NUMPY_SUM, sizes.n, 'primed')),
  );
  const trips = await roundTrips(client, home, template, sizes.n);
  add(rowOf('eval_rtt', 'ms', trips.evalRtt));
  const exec = add(rowOf('exec_true_rtt', 'ms', trips.execTrueRtt));
  const cli = rowOf('cli_overhead', 'ms', trips.cliExec);
  const less = (value: number | null): number | null => (value === null ? null : value - (exec.p50 ?? 0));
  add({
    ...cli,
    p50: less(cli.p50),
    p90: less(cli.p90),
    p99: less(cli.p99),
    note: 'forkd exec ID true, less exec_true_rtt',
  });
  const cold = add(
    rowOf('cold_eval', 'ms', await coldEval(client, join(TEMPLATES, `${template}.yaml`), sizes.cold)),
  );
  ratio('cold_eval : fork_eval_primed', cold, primed);
  const gvisor = (await havePeer('runsc'))
    ? add(rowOf('gvisor_numpy', 'ms', await gvisorNumpy(sizes.peers)))
    : undefined;
  if (await havePeer('bwrap')) add(rowOf('bubblewrap_numpy', 'ms', await bubblewrapNumpy(sizes.peers)));
  if (gvisor) ratio('gvisor_numpy : fork_eval_primed_numpy', gvisor, numpy);
  else console.error('gVisor is not installed: run with --install-peers');
}

{
  await using daemon = await BenchDaemon.start(home, { process: 1, primed: 0 });
  // They take longer than all the others; `--smoke --only` has them.
  if (!options.smoke) await branchRows(daemon.client, sizes.branch, add);
}

finish(conditions);
