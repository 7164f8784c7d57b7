/** The engine without a daemon in front, for what the daemon has no verb for: pauses, connections, watches. */
import { type Machine, newId, openEngine } from '@forkd/engine';

export interface Library extends AsyncDisposable {
  /** Forks one child of a snapshot, by default of the one that the library was opened with. Whoever asked for it destroys it. */
  fork(snapshotId?: string): Promise<Machine>;
}

/** Opens the engine on a state directory whose daemon has ended. */
export async function openLibrary(options: {
  home: string;
  nativeDir: string;
  snapshotId: string;
}): Promise<Library> {
  const { home, nativeDir } = options;
  const engine = await openEngine({ home, nativeDir, standby: { process: 0, primed: 0 } });
  return {
    async fork(snapshotId = options.snapshotId) {
      const child = { id: newId('sb'), hostname: 'test', env: {}, metadata: '{}' };
      const [made] = await engine.fork({ snapshotId, children: [child] });
      if (!made?.ok) throw made?.error;
      return made.machine;
    },
    [Symbol.asyncDispose]: () => engine[Symbol.asyncDispose](),
  };
}
