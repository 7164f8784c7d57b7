import { readFile } from 'node:fs/promises';
import type { Forkd } from '@forkd/sdk';
import type { Series } from '../statistics.js';

const MiB_PER_KIB = 1 / 1024;

/**
 * Memory of one idle child, MiB: what MemAvailable loses over `children` of them after their first answer, divided by their number.
 */
export async function idleMemory(
  client: Forkd,
  template: string,
  children: number,
  runs: number,
): Promise<Series> {
  const series: Series = { values: [], failures: [] };
  for (let i = 0; i < runs; i++) {
    const before = await memAvailable();
    const { sandboxes, failures } = await client.fork({ snapshot: template, n: children });
    try {
      await Promise.all(sandboxes.map((child) => child.eval('1+1')));
      const after = await memAvailable();
      if (failures.length > 0) series.failures.push(failures[0]?.error.error ?? 'a child failed');
      else series.values.push(((before - after) * MiB_PER_KIB) / children);
    } finally {
      await Promise.all(sandboxes.map((child) => client.sandboxes.remove(child.id)));
    }
  }
  return series;
}

/** KiB. */
async function memAvailable(): Promise<number> {
  const text = await readFile('/proc/meminfo', 'utf8');
  const kib = /^MemAvailable:\s+(\d+) kB/m.exec(text)?.[1];
  if (kib === undefined) throw new Error('/proc/meminfo has no MemAvailable');
  return Number(kib);
}
