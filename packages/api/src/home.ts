/** Where one user's forkd keeps its state. */

/**
 * The state directory: `FORKD_HOME`, else `$XDG_STATE_HOME/forkd`, else `$HOME/.local/state/forkd`.
 * Null when none of them is set. A relative `XDG_STATE_HOME` is ignored, as its specification demands.
 *
 * @example stateDirectory({ HOME: '/root' }) // '/root/.local/state/forkd'
 */
export function stateDirectory(env: Readonly<Record<string, string | undefined>>): string | null {
  if (env.FORKD_HOME) return env.FORKD_HOME;
  if (env.XDG_STATE_HOME?.startsWith('/')) return `${trimSlash(env.XDG_STATE_HOME)}/forkd`;
  if (env.HOME) return `${trimSlash(env.HOME)}/.local/state/forkd`;
  return null;
}

function trimSlash(path: string): string {
  return path.replace(/\/+$/, '');
}

/** Names of files in the state directory that clients use. */
export const homeFiles = {
  socket: 'forkd.sock',
  token: 'token',
  lock: 'daemon.lock',
  log: 'daemon.log',
} as const;
