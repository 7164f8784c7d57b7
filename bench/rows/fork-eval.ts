import type { Forkd } from '@forkd/sdk';
import { repeat, type Series, timed } from '../statistics.js';

/** The numpy sum of 100,000 random numbers. */
export const NUMPY_SUM = 'float(__import__("numpy").random.rand(100000).sum())';

/** How long a standby may take to be ready, ms. */
const STANDBY_MS = 60_000;

/** Between two looks at the pools, ms: the product tells nobody that they are full, since nobody but a bench waits for it. */
const LOOK_MS = 20;

/** Request for one child until the answer of its first eval is back. */
export async function forkEval(
  client: Forkd,
  template: string,
  code: string,
  n: number,
  standby: 'primed' | 'process' | null,
): Promise<Series> {
  return await repeat(n, 2, async (index) => {
    // The first fork makes the snapshot known: pools are filled from then on.
    if (standby && index > -2) await standbyReady(client, standby);
    let id: string | undefined;
    try {
      return await timed(async () => {
        const { sandboxes, failures } = await client.fork({ snapshot: template, n: 1 });
        const [child] = sandboxes;
        if (!child) throw new Error(failures[0]?.error.error ?? 'no child');
        id = child.id;
        const answer = await child.eval(code);
        if (answer.error !== null || answer.result === null) throw new Error(answer.error ?? 'no value');
      });
    } finally {
      if (id !== undefined) await client.sandboxes.remove(id);
    }
  });
}

/** Waits until a pool has something. */
export async function standbyReady(client: Forkd, kind: 'primed' | 'process'): Promise<void> {
  const end = performance.now() + STANDBY_MS;
  while (performance.now() < end) {
    const { standby } = await client.daemon();
    if (standby[kind].ready > 0) return;
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
  throw new Error(`no standby of kind ${kind} became ready within ${STANDBY_MS / 1000} s`);
}

/** N children from one request, each has answered `1+1`; every one must. */
export async function forkWall(
  client: Forkd,
  template: string,
  children: number,
  runs: number,
): Promise<Series> {
  return await repeat(runs, 0, async () => {
    const ids: string[] = [];
    try {
      return await timed(async () => {
        const { sandboxes, failures } = await client.fork({ snapshot: template, n: children });
        ids.push(...sandboxes.map((child) => child.id));
        if (failures.length > 0)
          throw new Error(`${failures.length} of ${children} failed: ${failures[0]?.error.error}`);
        const answers = await Promise.all(sandboxes.map((child) => child.eval('1+1')));
        const wrong = answers.filter((answer) => answer.result !== '2').length;
        if (wrong > 0) throw new Error(`${wrong} of ${children} answered wrongly`);
      });
    } finally {
      await Promise.all(ids.map((id) => client.sandboxes.remove(id)));
    }
  });
}
