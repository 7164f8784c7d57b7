import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { SnapshotInfo } from '@forkd/api';
import type { Forkd, Sandbox } from '@forkd/sdk';
import { type Row, repeat, rowOf, rowWithin, type Series, singleRow, timed } from '../statistics.js';

const run = promisify(execFile);

const PROBE = fileURLToPath(new URL('../guest/probe.c', import.meta.url));
const MiB = 2 ** 20;
const PAGE = 4096;

/** The machine of these rows: nothing in it, and as much memory as the bounds are given for. */
const template = 'bench-branch';
const recipe = 'description: what branches are measured on\nbase: busybox\nmemory: 2048M\ndisk: 1024M\n';

/** After so long a row takes no more measurements, ms; a whole run is to end within minutes on a busy host too. */
const BUDGET_MS = 25_000;
/** A row that takes longer has failed, ms. */
const ROW_MS = 150_000;
/** Time that the probe has for its pages, s. */
const SCATTER_SECS = 120;

/** How many branches each row takes. */
export interface BranchSizes {
  pauses: number;
  stalls: number;
  grandchildren: number;
}

type Add = (row: Row) => Row;

/** Names of all rows, in the order in which they are measured. */
type Measure = (bench: BranchBench) => Promise<Row>;
const measures: [string, Measure][] = [
  ...[0, 64, 512, 1024].map((mib): [string, Measure] => [
    `branch_live_pause_${mib}`,
    (bench) => bench.pause(`branch_live_pause_${mib}`, 'live', mib),
  ]),
  ...[0, 16, 128].map((mib): [string, Measure] => [
    `branch_diff_pause_${mib}`,
    (bench) => bench.pause(`branch_diff_pause_${mib}`, 'diff', mib),
  ]),
  ['branch_full_pause', (bench) => bench.pause('branch_full_pause', 'full', 64)],
  ['branch_stall', (bench) => bench.stall()],
  ['branch_to_grandchild_16', (bench) => bench.grandchild()],
  ...[0, 1, 2, 3, 4, 5].map((depth): [string, Measure] => [
    `fork_depth_${depth}`,
    (bench) => bench.depth(depth),
  ]),
  ['link_disk_ratio', (bench) => bench.linkRatio()],
  ['branch_10th_bytes_ratio', (bench) => bench.tenth('branch_10th_bytes_ratio', 'bytes')],
  ['branch_10th_time_ratio', (bench) => bench.tenth('branch_10th_time_ratio', 'ms')],
  ['branch_8_at_once_pause', (bench) => bench.atOnce(8)],
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

class BranchBench {
  readonly #client: Forkd;
  readonly #sizes: BranchSizes;
  readonly #probe: Buffer;
  /** The 10th branch is measured once, for two rows. */
  #tenth: Promise<Record<'bytes' | 'ms', number>> | undefined;

  constructor(client: Forkd, sizes: BranchSizes, probe: Buffer) {
    this.#client = client;
    this.#sizes = sizes;
    this.#probe = probe;
  }

  /** How long the source stands still, with so much memory of its own. Each branch goes before the next: none is compared with another. */
  async pause(name: string, mode: 'live' | 'diff' | 'full', mib: number): Promise<Row> {
    return await this.#withSource(async (box) => {
      if (mib > 0) await this.#scatter(box, (mib * MiB) / PAGE, 1);
      const series = await repeat(
        this.#sizes.pauses,
        1,
        async () => {
          const info = await box.branch({ mode });
          await this.#client.snapshots.removeWithDependents(info.id);
          return pauseOf(info);
        },
        BUDGET_MS,
      );
      return rowOf(name, 'ms', series, `${mib} MiB private, RAM 2 GiB`);
    });
  }

  /** The longest stall that the guest sees in the 5 s after a live branch, by its own clock. */
  async stall(): Promise<Row> {
    return await this.#withSource(async (box) => {
      await this.#scatter(box, (64 * MiB) / PAGE, 1);
      const series = await repeat(
        this.#sizes.stalls,
        0,
        async () => {
          const process = await box.run(['/dev/shm/probe', 'stall', '5']);
          process.stderr?.resume();
          let text = '';
          const ready = new Promise<void>((resolve) => {
            process.stdout.on('data', (chunk: Buffer) => {
              text += chunk.toString('latin1');
              resolve();
            });
          });
          await ready;
          const info = await box.branch();
          const { exitCode } = await process.wait();
          await this.#client.snapshots.removeWithDependents(info.id);
          const [, ...longest] = text.trim().split('\n');
          if (exitCode !== 0 || longest.length !== 2) throw new Error(`the probe said ${text}`);
          return Math.max(...longest.map(Number)) / 1000;
        },
        BUDGET_MS,
      );
      return rowOf('branch_stall', 'ms', series, 'longest in 5 s, 1 kHz reader beside a writer');
    });
  }

  /** Request for a branch with one child until that child has answered; 16 MiB in scattered pages changed. */
  async grandchild(): Promise<Row> {
    return await this.#withSource(async (box) => {
      await this.#scatter(box, (16 * MiB) / PAGE, 0);
      const series = await repeat(
        this.#sizes.grandchildren,
        1,
        async (index) => {
          await this.#scatter(box, (16 * MiB) / PAGE, index + 10);
          await this.#standbyReady();
          const ids: string[] = [];
          let snapshot: string | undefined;
          try {
            return await timed(async () => {
              const { id, children } = await this.#branchWithChild(box);
              snapshot = id;
              ids.push(...children.map((child) => child.id));
              await children[0]!.exec(['true']);
            });
          } finally {
            for (const id of ids) await this.#client.sandboxes.remove(id);
            if (snapshot) await this.#client.snapshots.removeWithDependents(snapshot);
          }
        },
        BUDGET_MS,
      );
      return rowOf('branch_to_grandchild_16', 'ms', series, '16 MiB in scattered pages, standby ready');
    });
  }

  /** One fork of a snapshot that stands on so many others, until its first answer. */
  async depth(depth: number): Promise<Row> {
    const made: string[] = [];
    let below = template;
    try {
      for (let link = 1; link <= depth; link++)
        await this.#withSource(async (box) => {
          await this.#scatter(box, (4 * MiB) / PAGE, link);
          below = (await box.branch()).id;
          made.push(below);
        }, below);
      const series = await repeat(
        this.#sizes.grandchildren,
        1,
        async () => {
          await this.#standbyReady();
          let box: Sandbox | undefined;
          try {
            return await timed(async () => {
              box = await this.#forkOne(below);
              await box.exec(['true']);
            });
          } finally {
            if (box) await box.kill();
          }
        },
        BUDGET_MS,
      );
      return rowOf(`fork_depth_${depth}`, 'ms', series, 'fork to first answer, standby ready');
    } finally {
      for (const id of made.reverse()) await this.#client.snapshots.removeWithDependents(id);
    }
  }

  /** Bytes that a branch takes on disk, to those that a program has changed: 64 MiB. */
  async linkRatio(): Promise<Row> {
    return await this.#withSource(async (box) => {
      await this.#scatter(box, PAGE, 0);
      const before = await box.branch();
      const changed = 64 * MiB;
      await this.#scatter(box, changed / PAGE, 2);
      const { id } = await box.branch();
      const { memory_physical_bytes, disk_physical_bytes } = await this.#client.snapshots.get(id);
      await this.#client.snapshots.removeWithDependents(before.id);
      const ratio = (memory_physical_bytes + disk_physical_bytes) / changed;
      return singleRow('link_disk_ratio', 'ratio', ratio, 'bytes allocated : 64 MiB that were changed');
    });
  }

  /** The 10th branch of one source with 512 MiB of its own and 16 MiB changed between, to the first of a source with 16 MiB. */
  async tenth(name: string, what: 'bytes' | 'ms'): Promise<Row> {
    this.#tenth ??= this.#measureTenth();
    return singleRow(name, 'ratio', (await this.#tenth)[what], '10th of 512 + 16 MiB : first of 16 MiB');
  }

  async #measureTenth(): Promise<Record<'bytes' | 'ms', number>> {
    const first = await this.#withSource(async (box) => {
      await this.#scatter(box, (16 * MiB) / PAGE, 1);
      return await this.#cost(box);
    });
    const last = await this.#withSource(async (box) => {
      await this.#scatter(box, (512 * MiB) / PAGE, 1, 'much');
      let cost = { bytes: 0, ms: 0 };
      for (let branch = 1; branch <= 10; branch++) {
        await this.#scatter(box, (16 * MiB) / PAGE, branch);
        cost = await this.#cost(box);
      }
      return cost;
    });
    return { bytes: last.bytes / first.bytes, ms: last.ms / first.ms };
  }

  /** Pauses of so many sandboxes that are branched at once. */
  async atOnce(count: number): Promise<Row> {
    const boxes: Sandbox[] = [];
    const series: Series = { values: [], failures: [] };
    try {
      for (let index = 0; index < count; index++) {
        const box = await this.#source(template);
        boxes.push(box);
        await this.#scatter(box, (16 * MiB) / PAGE, index);
      }
      for (const result of await Promise.allSettled(boxes.map((box) => box.branch())))
        if (result.status === 'fulfilled') series.values.push(pauseOf(result.value));
        else series.failures.push(String(result.reason));
    } finally {
      for (const box of boxes) await this.#removeSource(box);
    }
    return rowOf(`branch_${count}_at_once_pause`, 'ms', series, '16 MiB private each');
  }

  async #cost(box: Sandbox): Promise<{ bytes: number; ms: number }> {
    let bytes = 0;
    const ms = await timed(async () => {
      bytes = (await box.branch()).diff_physical_bytes ?? 0;
    });
    return { bytes, ms };
  }

  async #branchWithChild(box: Sandbox): Promise<{ id: string; children: Sandbox[] }> {
    const { snapshot, sandboxes } = await box.fork(1);
    return { id: snapshot.id, children: sandboxes };
  }

  /** Other bytes into so many pages, every fourth of a file in memory. */
  async #scatter(box: Sandbox, pages: number, seed: number, name = 'scattered'): Promise<void> {
    const result = await box.exec(
      ['/dev/shm/probe', 'scatter', `/dev/shm/${name}`, String(pages), String(seed)],
      { timeoutSecs: SCATTER_SECS },
    );
    if (result.exit_code !== 0)
      throw new Error(`the probe failed: ${JSON.stringify(result.outcome)} ${result.stderr}`);
  }

  async #forkOne(snapshot: string): Promise<Sandbox> {
    const { sandboxes, failures } = await this.#client.fork({ snapshot, n: 1 });
    const [box] = sandboxes;
    if (!box) throw new Error(failures[0]?.error.error ?? 'no child');
    return box;
  }

  async #source(snapshot: string): Promise<Sandbox> {
    const box = await this.#forkOne(snapshot);
    if (snapshot !== template) return box;
    await box.files.write('/dev/shm/probe', this.#probe, { mode: 0o755 });
    const { exit_code, stderr } = await box.exec({
      shell: 'chmod 755 /dev/shm/probe; mount -o remount,size=1900M /dev/shm',
    });
    if (exit_code !== 0) throw new Error(`the guest has no room for the measurement: ${stderr}`);
    return box;
  }

  async #removeSource(box: Sandbox): Promise<void> {
    await box.kill();
    for (const { id, branched_from } of await this.#client.snapshots.list())
      if (branched_from === box.id)
        await this.#client.snapshots.removeWithDependents(id).catch(() => undefined);
  }

  /** Forks a source, and removes it afterwards; its branches stay. */
  async #withSource<T>(work: (box: Sandbox) => Promise<T>, snapshot = template): Promise<T> {
    const box = await this.#source(snapshot);
    try {
      return await work(box);
    } finally {
      await box.kill();
    }
  }

  /** Waits until a VMM waits. */
  async #standbyReady(): Promise<void> {
    for (const end = performance.now() + 60_000; performance.now() < end; ) {
      if ((await this.#client.daemon()).standby.process.ready > 0) return;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    throw new Error('no standby became ready within 60 s');
  }
}

function pauseOf({ pause_ms }: SnapshotInfo): number {
  if (pause_ms === undefined) throw new Error('the branch tells no pause');
  return pause_ms;
}
