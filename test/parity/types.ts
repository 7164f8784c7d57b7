/** Behaviours that hold on every engine and accelerator: one suite, run over each of them. */
import type { Forkd, Sandbox } from '@forkd/sdk';
import type { Library } from '../support/library.js';

/** What the behaviours are shown on. */
export interface Stage {
  readonly client: Forkd;
  readonly home: string;
  readonly engine: string;
  readonly accelerator: string;
  /** Of the engine. */
  readonly version: string;
  /** How much slower than an ordinary host this one is, at least 1: bounds of time are multiplied by it. */
  readonly slowness: number;
  /** Guests that have ended by themselves without a word of their kernel, as a triple fault does; the behaviours that mean to end one aside. */
  readonly lostGuests: number;
  /** Kills the daemon as a crash does, and starts the next one. */
  crash(): Promise<void>;
  /** The engine without a daemon in front: that ends, and the next one starts at the end of the scope. */
  library(): Promise<Library>;
  /** Forks of a snapshot, by default of the busybox template. All must start; they are removed at the end of the scope. */
  fork(n?: number, options?: { snapshot?: string; env?: Record<string, string> }): Promise<Children>;
  /** The snapshot of a template, by its text: built when it is first asked for, tagged `tag`. */
  template(tag: string, yaml: string): Promise<string>;
}

export interface Children extends AsyncDisposable {
  readonly boxes: readonly Sandbox[];
  /** The first. */
  readonly box: Sandbox;
}

/** One behaviour. Throws where it does not hold. */
export interface Scenario {
  area: 'fork' | 'hello' | 'disks' | 'streams' | 'eval' | 'files' | 'standby' | 'branch' | 'faults';
  name: string;
  /** Left out elsewhere: `own-disk` fills the file system that state directories are made on, which must be nobody else's. */
  needs?: 'own-disk';
  run(stage: Stage): Promise<void>;
}
