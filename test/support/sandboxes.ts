import { forkd } from './cli.js';

/** Sandboxes that are removed when they go out of scope. */
export interface Forked extends AsyncDisposable {
  readonly ids: readonly string[];
  /** The first. */
  readonly id: string;
}

/**
 * Forks from the busybox template.
 *
 * @example await using box = await fork(); await forkd(['exec', box.id, 'true']);
 */
export async function fork(n = 1, args: readonly string[] = []): Promise<Forked> {
  const { code, stdout, stderr } = await forkd(['fork', 'busybox', '-n', String(n), ...args]);
  if (code !== 0) throw new Error(`fork exited ${code}: ${stderr}`);
  const ids = stdout.trim().split('\n');
  return {
    ids,
    id: ids[0] ?? '',
    async [Symbol.asyncDispose]() {
      await forkd(['rm', ...ids]);
    },
  };
}
