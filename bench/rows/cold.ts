import { readFile } from 'node:fs/promises';
import type { Forkd } from '@forkd/sdk';
import type { Series } from '../statistics.js';

/**
 * The same machine started cold: power-on to a warm interpreter with numpy imported, as a build of the template measures it. A comment
 * makes each build another one, so that nothing but image and kernel comes from a cache.
 */
export async function coldEval(client: Forkd, templateFile: string, runs: number): Promise<Series> {
  const yaml = await readFile(templateFile, 'utf8');
  const series: Series = { values: [], failures: [] };
  const tag = 'bench-cold';
  for (let i = 0; i < runs; i++) {
    try {
      const unlike = `${yaml}\nenv:\n  FORKD_BENCH: "${process.pid}-${i}"\n`;
      let id: string | undefined;
      for await (const event of client.templates.build({ yaml: unlike }, { tag })) {
        if (event.type === 'failed') throw new Error(event.error.error);
        if (event.type === 'done') id = event.snapshot_id;
      }
      if (id === undefined) throw new Error('the build ended without a snapshot');
      const { manifest } = await client.snapshots.get(id);
      const { build } = manifest as { build: { bootMs: number; warmMs: number } };
      series.values.push(build.bootMs + build.warmMs);
    } catch (error) {
      series.failures.push(error instanceof Error ? error.message : String(error));
    }
  }
  await client.snapshots.remove(tag);
  return series;
}
