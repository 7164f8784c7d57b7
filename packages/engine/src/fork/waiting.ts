import { randomBytes } from 'node:crypto';
import { rename } from 'node:fs/promises';
import { join } from 'node:path';
import { makeRunDirectory, removeRunDirectory, type VmmUser } from '../machine/run-directory.js';
import type { RamRange, ShimAbilities } from '../shim/index.js';
import type { Manifest, SnapshotStore } from '../snapshot/index.js';
import type { LogFunction } from '../types.js';
import type { LoadSource, MachineShape, Vmm, VmmDriver } from '../vmm/types.js';

/** What all children of one snapshot share. */
export interface ChildSource extends LoadSource {
  manifest: Manifest;
  shape: MachineShape;
  /** The read-only image: absolute path. */
  image: string;
  /** Memory that each child copies at its start, bytes. */
  copiedBytes: number;
}

/** What the host gives to every child. */
export interface ChildHost {
  runRoot: string;
  driver: VmmDriver;
  /** The engine's program: absolute path. */
  binary: string;
  shimBinary: string;
  abilities: ShimAbilities;
  user: VmmUser | undefined;
  store: SnapshotStore;
  log: LogFunction;
}

/** How long one child may take from its start to its hello, ms; tens of them when all is well. */
export const CHILD_MS = 60_000;

/** Start of the names of run directories that belong to no sandbox yet. */
export const STANDBY_PREFIX = 'standby-';

/** A VMM that waits for a snapshot of its shape: no memory, no disk, no name yet. Owned by whoever holds it. */
export class WaitingVmm implements AsyncDisposable {
  readonly vmm: Vmm;
  /** Where guest RAM lies in the VMM; known once it is loaded. */
  ram: RamRange[] = [];

  constructor(vmm: Vmm) {
    this.vmm = vmm;
  }

  /** Whether it can still be used. */
  async alive(): Promise<boolean> {
    return (await Promise.race([this.vmm.shim.exited, Promise.resolve(null)])) === null;
  }

  /** Gives it a snapshot. The machine is paused before and after. */
  async load(source: ChildSource, signal: AbortSignal): Promise<{ graftMs: number; loadMs: number }> {
    const { ram, graftMs, loadMs } = await this.vmm.load(source, signal);
    this.ram = ram;
    return { graftMs, loadMs };
  }

  /** Moves its directory to the name of a sandbox. */
  async moveTo(runRoot: string, id: string): Promise<void> {
    const dir = join(runRoot, id);
    await rename(this.vmm.dir, dir);
    this.vmm.moved(dir);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.vmm.destroy();
    await removeRunDirectory(this.vmm.dir);
  }
}

/** Everything that a waiting VMM is tied to, as one string. */
export function shapeKey(source: ChildSource, host: ChildHost): string {
  const { manifest, shape, image } = source;
  return JSON.stringify([shape, manifest.diskBytes, image, host.binary, manifest.machine.engineSha256]);
}

/** Starts a VMM that waits, in a directory of its own. Whatever fails, nothing of it is left. */
export async function startWaiting(
  source: ChildSource,
  host: ChildHost,
  signal: AbortSignal,
): Promise<WaitingVmm> {
  const dir = join(host.runRoot, `${STANDBY_PREFIX}${randomBytes(10).toString('hex')}`);
  await makeRunDirectory(dir, host.user);
  try {
    const { binary, shimBinary, abilities, user } = host;
    const { shape, image, manifest } = source;
    const { diskBytes } = manifest;
    return new WaitingVmm(
      await host.driver.startWaiting(
        { dir, binary, shimBinary, abilities, user, shape, image, diskBytes },
        signal,
      ),
    );
  } catch (error) {
    await removeRunDirectory(dir);
    throw error;
  }
}
