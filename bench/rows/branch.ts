import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Forkd } from '@forkd/sdk';
import { type Row, rowWithin } from '../statistics.js';
import { forkAtDepth, grandchild } from './branch/children.js';
import { linkRatio, tenth } from './branch/links.js';
import { atOnce, pause, stall } from './branch/pauses.js';
import { BranchBench, type BranchSizes, template } from './branch/support.js';

const run = promisify(execFile);

const PROBE = fileURLToPath(new URL('../guest/probe.c', import.meta.url));
const recipe = 'description: what branches are measured on\nbase: busybox\nmemory: 2048M\ndisk: 1024M\n';

/** A row that takes longer has failed, ms. */
const ROW_MS = 150_000;

type Add = (row: Row) => Row;

/** Names of all rows, in the order in which they are measured. */
type Measure = (bench: BranchBench) => Promise<Row>;
const measures: [string, Measure][] = [
  ...[0, 64, 512, 1024].map((mib): [string, Measure] => [
    `branch_live_pause_${mib}`,
    (bench) => pause(bench, `branch_live_pause_${mib}`, 'live', mib),
  ]),
  ...[0, 16, 128].map((mib): [string, Measure] => [
    `branch_diff_pause_${mib}`,
    (bench) => pause(bench, `branch_diff_pause_${mib}`, 'diff', mib),
  ]),
  ['branch_full_pause', (bench) => pause(bench, 'branch_full_pause', 'full', 64)],
  ['branch_stall', (bench) => stall(bench, 'branch_stall', true)],
  ['branch_stall_without', (bench) => stall(bench, 'branch_stall_without', false)],
  ['branch_to_grandchild_16', (bench) => grandchild(bench, 'branch_to_grandchild_16', 'command')],
  ['branch_to_grandchild_16_hello', (bench) => grandchild(bench, 'branch_to_grandchild_16_hello', 'hello')],
  ...[0, 1, 2, 3, 4, 5].map((depth): [string, Measure] => [
    `fork_depth_${depth}`,
    (bench) => forkAtDepth(bench, depth),
  ]),
  ['link_disk_ratio', (bench) => linkRatio(bench)],
  ['branch_10th_bytes_ratio', (bench) => tenth(bench, 'branch_10th_bytes_ratio', 'bytes')],
  ['branch_10th_time_ratio', (bench) => tenth(bench, 'branch_10th_time_ratio', 'ms')],
  ['branch_8_at_once_pause', (bench) => atOnce(bench, 8)],
];

function unitOf(name: string): Row['unit'] {
  return name.endsWith('_ratio') ? 'ratio' : 'ms';
}

/** Whether a row is asked for. `pattern`: a name, `*` for any text; all without. */
function asked(name: string, pattern: string | undefined): boolean {
  if (pattern === undefined) return true;
  return new RegExp(`^${pattern.replaceAll('*', '.*')}$`).test(name);
}

/** Whether a pattern names rows of branches. */
export function namesBranchRows(pattern: string): boolean {
  return measures.some(([name]) => asked(name, pattern));
}

/** Measures branches. The daemon keeps standbys of kind process. */
export async function branchRows(
  client: Forkd,
  sizes: BranchSizes,
  add: Add,
  pattern?: string,
): Promise<void> {
  for await (const event of client.templates.build({ yaml: recipe }, { tag: template }))
    if (event.type === 'failed') throw new Error(event.error.error);
  const directory = await mkdtemp(join(tmpdir(), 'forkd-bench-'));
  try {
    const program = join(directory, 'probe');
    await run(process.env.CC ?? 'gcc', ['-std=gnu11', '-O2', '-static', '-s', PROBE, '-o', program]);
    const bench = new BranchBench(client, sizes, await readFile(program));
    for (const [name, measure] of measures)
      if (asked(name, pattern)) add(await rowWithin(name, unitOf(name), ROW_MS, () => measure(bench)));
  } finally {
    await rm(directory, { recursive: true, force: true });
    await client.snapshots.removeWithDependents(template);
  }
}
