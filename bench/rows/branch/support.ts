import type { Forkd, Sandbox } from '@forkd/sdk';

export const MiB = 2 ** 20;
export const PAGE = 4096;

/** The machine of these rows: nothing in it, and as much memory as the bounds are given for. */
export const template = 'bench-branch';

/** After so long a row takes no more measurements, ms; a whole run is to end within minutes on a busy host too. */
export const BUDGET_MS = 25_000;
/** Time that the probe has for its pages, s. */
const SCATTER_SECS = 120;

/** How many branches each row takes. */
export interface BranchSizes {
  pauses: number;
  stalls: number;
  grandchildren: number;
}

/** What the rows of branches share: sources, and a program in them that changes memory. */
export class BranchBench {
  readonly client: Forkd;
  readonly sizes: BranchSizes;
  readonly #probe: Buffer;
  /** The 10th branch is measured once, for two rows. */
  tenth: Promise<Record<'bytes' | 'ms', number>> | undefined;

  constructor(client: Forkd, sizes: BranchSizes, probe: Buffer) {
    this.client = client;
    this.sizes = sizes;
    this.#probe = probe;
  }

  /** Other bytes into so many pages, every fourth of a file in memory. */
  async scatter(box: Sandbox, pages: number, seed: number, name = 'scattered'): Promise<void> {
    const result = await box.exec(
      ['/dev/shm/probe', 'scatter', `/dev/shm/${name}`, String(pages), String(seed)],
      { timeoutSecs: SCATTER_SECS },
    );
    if (result.exit_code !== 0)
      throw new Error(`the probe failed: ${JSON.stringify(result.outcome)} ${result.stderr}`);
  }

  async forkOne(snapshot: string): Promise<Sandbox> {
    const { sandboxes, failures } = await this.client.fork({ snapshot, n: 1 });
    const [box] = sandboxes;
    if (!box) throw new Error(failures[0]?.error.error ?? 'no child');
    return box;
  }

  async source(snapshot: string): Promise<Sandbox> {
    const box = await this.forkOne(snapshot);
    if (snapshot !== template) return box;
    await box.files.write('/dev/shm/probe', this.#probe, { mode: 0o755 });
    const { exit_code, stderr } = await box.exec({
      shell: 'chmod 755 /dev/shm/probe; mount -o remount,size=1900M /dev/shm',
    });
    if (exit_code !== 0) throw new Error(`the guest has no room for the measurement: ${stderr}`);
    return box;
  }

  async removeSource(box: Sandbox): Promise<void> {
    await box.kill();
    for (const { id, branched_from } of await this.client.snapshots.list())
      if (branched_from === box.id)
        await this.client.snapshots.removeWithDependents(id).catch(() => undefined);
  }

  /** Forks a source, and removes it afterwards; its branches stay. */
  async withSource<T>(work: (box: Sandbox) => Promise<T>, snapshot = template): Promise<T> {
    const box = await this.source(snapshot);
    try {
      return await work(box);
    } finally {
      await box.kill();
    }
  }

  /** Waits until a VMM waits. */
  async standbyReady(): Promise<void> {
    for (const end = performance.now() + 60_000; performance.now() < end; ) {
      if ((await this.client.daemon()).standby.process.ready > 0) return;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    throw new Error('no standby became ready within 60 s');
  }
}
