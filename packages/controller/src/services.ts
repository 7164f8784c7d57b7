/** What routes work with. */
import type { DaemonInfo } from '@forkd/api';
import type { Engine } from '@forkd/engine';
import type { Branches } from './branches.js';
import type { Builds } from './builds.js';
import type { Log } from './log.js';
import type { Metrics } from './metrics.js';
import type { Sandboxes } from './sandboxes.js';
import type { Snapshots } from './snapshots.js';
import type { Templates } from './templates.js';

export interface Services {
  engine: Engine;
  sandboxes: Sandboxes;
  snapshots: Snapshots;
  branches: Branches;
  templates: Templates;
  builds: Builds;
  metrics: Metrics;
  log: Log;
  version: string;
  /** The daemon, now. */
  describe(): DaemonInfo;
  /** Something goes on until the function that it returns is called: the daemon does not end for want of work. */
  enter(): () => void;
  /** Whether the daemon is about to end. */
  closing(): boolean;
}
