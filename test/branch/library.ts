/** The engine without a daemon in front, for what the daemon has no verb for: pauses, connections, watches. */
import { resolve } from 'node:path';
import { type Machine, newId, openEngine } from '@forkd/engine';
import type { OwnHome } from '../sandbox/home.js';

export interface Library extends AsyncDisposable {
  /** Forks one child of a snapshot, by default of the busybox template. Whoever asked for it destroys it. */
  fork(snapshotId?: string): Promise<Machine>;
}

/** Takes a home over from its daemon, which ends. */
export async function openLibrary(home: OwnHome): Promise<Library> {
  const busybox = (await home.client.snapshots.get('busybox')).id;
  await home.crash();
  const engine = await openEngine({
    home: home.path,
    nativeDir: resolve(import.meta.dirname, '../../build/native'),
    standby: { process: 0, primed: 0 },
  });
  return {
    async fork(snapshotId = busybox) {
      const child = { id: newId('sb'), hostname: 'test', env: {}, metadata: '{}' };
      const [made] = await engine.fork({ snapshotId, children: [child] });
      if (!made?.ok) throw made?.error;
      return made.machine;
    },
    [Symbol.asyncDispose]: () => engine[Symbol.asyncDispose](),
  };
}
