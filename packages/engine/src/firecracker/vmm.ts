import { chown, link, unlink } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { Duplex } from 'node:stream';
import { copyDisk } from '../guest/disk.js';
import { handOver, type VmmUser } from '../machine/run-directory.js';
import { readTail } from '../read-tail.js';
import {
  type FrozenCapture,
  type PauseScript,
  type RamRange,
  type Shim,
  startShimAnd,
  type VmmExit,
} from '../shim/index.js';
import { orEnded } from '../vmm/ended.js';
import {
  captured,
  type Loaded,
  type LoadSource,
  type PauseClock,
  type PreparedDisk,
  type Vmm,
  type VmmDisks,
  type VmmHost,
  type VmmState,
} from '../vmm/types.js';
import { FirecrackerApi, type InstanceInfo } from './api.js';
import { Arrival } from './arrival.js';
import { AGENT_PORT, drives, fcFiles } from './files.js';
import { isJail, jailed, tidyJail } from './jail.js';
import { checkPause, pauseScript, resumeRequest } from './pause.js';
import { RawDisk } from './raw-disk.js';
import { saveWhole } from './save-whole.js';
import { dialVsock } from './vsock.js';

export interface FirecrackerSpec extends VmmHost {
  /** Absolute path of its working directory. */
  dir: string;
  /** Absolute path of what jails it, where a user of its own is named; null: it runs without. */
  jailer: string | null;
}

const states: Record<InstanceInfo['state'], VmmState> = {
  Running: 'running',
  Paused: 'paused',
  'Not started': 'not started',
};

/** A Firecracker process with its shim and its API. */
export class FirecrackerVmm implements Vmm {
  readonly engine = 'firecracker';
  readonly shim: Shim;
  readonly api: FirecrackerApi;
  /** Never: Firecracker ends with its guest, and what that has printed is in its log. */
  readonly guestEnded = new Promise<void>(() => {});
  readonly resumeRecipe = { socket: fcFiles.api, lines: [resumeRequest], greets: false };
  readonly #user: VmmUser | undefined;
  #dir: string;

  constructor(dir: string, shim: Shim, user: VmmUser | undefined) {
    this.#dir = dir;
    this.shim = shim;
    this.#user = user;
    this.api = new FirecrackerApi(() => join(this.#dir, fcFiles.api));
  }

  /**
   * Starts shim and VMM and waits until its API takes connections.
   *
   * @throws EngineError vmm_failed with the VMM's last words when it ends instead
   */
  static async start(spec: FirecrackerSpec, signal: AbortSignal): Promise<FirecrackerVmm> {
    const { dir, binary, shimBinary, abilities, user } = spec;
    const jailer = user ? spec.jailer : null;
    using arrival = new Arrival(dir, fcFiles.api);
    const bare = [binary, '--api-sock', fcFiles.api, '--id', 'forkd', '--level', 'Error'];
    const argv = jailer ? await jailed(jailer, dir, user!, bare) : bare;
    // The jailer changes the user by itself, and makes a /dev/kvm for it.
    const as = jailer ? {} : user;
    return await startShimAnd(
      { dir, argv, sockets: [], ...as },
      { binary: shimBinary, signal, abilities },
      async (shim) => {
        await orEnded(arrival.accepts(signal), shim, signal);
        if (jailer) {
          // The jailer gave it the directory whole.
          await handOver(dir, user);
          await tidyJail(dir, binary);
        }
        return new FirecrackerVmm(dir, shim, user);
      },
    );
  }

  get dir(): string {
    return this.#dir;
  }

  moved(dir: string): void {
    this.#dir = dir;
    this.shim.moved(dir);
  }

  async load(source: LoadSource, signal: AbortSignal): Promise<Loaded> {
    return await orEnded(this.#load(source, signal), this.shim, signal);
  }

  async #load(source: LoadSource, signal: AbortSignal): Promise<Loaded> {
    const start = performance.now();
    this.shim.maps(source.files);
    await this.#place(source, signal);
    await this.api.put(
      '/snapshot/load',
      {
        snapshot_path: fcFiles.state,
        mem_backend: { backend_type: 'File', backend_path: fcFiles.memory },
        resume_vm: false,
      },
      { signal },
    );
    // The child's own disk lies under the name that the state has; said again, so that no name in a state can lead elsewhere.
    await this.api.patch(
      `/drives/${drives.disk}`,
      { drive_id: drives.disk, path_on_host: fcFiles.disk },
      { signal },
    );
    await unlink(join(this.#dir, fcFiles.state));
    const place = (await isJail(this.#dir)) ? '' : basename(this.#dir);
    const ram = await this.shim.findRam(`${place}/${fcFiles.memory}`);
    const grafting = performance.now();
    await this.#graftLayers(source, ram, signal);
    const graftMs = performance.now() - grafting;
    return { ram, graftMs, loadMs: performance.now() - start - graftMs };
  }

  /** Firecracker has mapped the base itself: what lies above it is grafted. */
  async #graftLayers(source: LoadSource, ram: readonly RamRange[], signal: AbortSignal): Promise<void> {
    const extents = source.extents.slice(1);
    if (extents.length > 0) await this.shim.graft({ ram, files: source.files, extents }, signal);
  }

  /** Links base and state into the directory, which is all that the VMM can reach, and makes the disk: a copy, sharing blocks where it can. */
  async #place(source: LoadSource, signal: AbortSignal): Promise<void> {
    const at = (name: string): string => join(this.#dir, name);
    await Promise.all([
      link(source.files[0]!.path, at(fcFiles.memory)),
      link(source.statePath, at(fcFiles.state)),
      copyDisk(source.disks.at(-1)!.path, at(fcFiles.disk), signal),
    ]);
    if (this.#user) await chown(at(fcFiles.disk), this.#user.uid, this.#user.gid);
  }

  async pause(signal?: AbortSignal): Promise<void> {
    await this.api.patch('/vm', { state: 'Paused' }, { signal });
  }

  async resume(signal?: AbortSignal): Promise<void> {
    await this.api.patch('/vm', { state: 'Resumed' }, { signal });
  }

  async status(signal?: AbortSignal): Promise<VmmState> {
    const { state } = await this.api.get<InstanceInfo>('/', { signal });
    return states[state] ?? state;
  }

  async saveTemplate(signal?: AbortSignal): Promise<void> {
    await saveWhole(this.api, this.#dir, captured, signal);
  }

  pauseScript(disk: PreparedDisk, stateFile: string): Omit<PauseScript, 'deadlineMs'> {
    return pauseScript(disk, stateFile, this.shim.abilities);
  }

  async checkPause(stateFile: string, frozen: FrozenCapture): Promise<void> {
    await checkPause(this.#dir, stateFile, frozen);
  }

  /** By the shim's clock: from before the request to pause until after the answer to resume. Firecracker has none for it. */
  clock(): PauseClock {
    return { ms: ({ steps }) => Promise.resolve(steps.reduce((sum, ms) => sum + ms, 0)) };
  }

  disks(): VmmDisks {
    return new RawDisk(this);
  }

  dialAgent(signal: AbortSignal): Promise<Duplex> {
    return dialVsock(join(this.#dir, fcFiles.vsock), AGENT_PORT, signal);
  }

  /** The guest's console is the VMM's output. */
  async console(): Promise<string> {
    return await readTail(join(this.#dir, 'vmm.log'));
  }

  baseName(): string {
    return `/${fcFiles.memory}`;
  }

  async quit(): Promise<void> {
    await this.shim.kill();
  }

  detach(): void {
    void this.api.close();
    this.shim.detach();
  }

  async destroy(): Promise<VmmExit> {
    await this.api.close();
    const exit = await this.shim.kill();
    await this.shim.end();
    return exit;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.destroy();
  }
}
