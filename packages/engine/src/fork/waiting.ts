import { randomBytes } from 'node:crypto';
import { rename } from 'node:fs/promises';
import { join } from 'node:path';
import {
  linkDisks,
  linkImage,
  makeOverlay,
  makeRunDirectory,
  removeRunDirectory,
  type VmmUser,
} from '../machine/run-directory.js';
import { childArgv, type MachineShape } from '../qemu/argv.js';
import { enableEvents, type LoadSource, loadChild } from '../qemu/load.js';
import { QemuVmm } from '../qemu/vmm.js';
import type { RamRange, ShimAbilities } from '../shim/index.js';
import type { Manifest, SnapshotStore } from '../snapshot/index.js';
import type { LogFunction } from '../types.js';

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
  qemu: string;
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
  readonly vmm: QemuVmm;
  /** Where guest RAM lies in the VMM; known once it is loaded. */
  ram: RamRange[] = [];

  constructor(vmm: QemuVmm) {
    this.vmm = vmm;
  }

  /** Whether it can still be used. */
  async alive(): Promise<boolean> {
    return (await Promise.race([this.vmm.shim.exited, Promise.resolve(null)])) === null;
  }

  /** Gives it a snapshot. The machine is paused before and after. */
  async load(source: ChildSource, signal: AbortSignal): Promise<{ graftMs: number; loadMs: number }> {
    await linkDisks(this.vmm.dir, source.disks);
    const { ram, graftMs, loadMs } = await loadChild(this.vmm, source, signal);
    this.ram = ram;
    return { graftMs, loadMs };
  }

  /** Moves its directory to the name of a sandbox. */
  async moveTo(runRoot: string, id: string): Promise<void> {
    const dir = join(runRoot, id);
    await rename(this.vmm.dir, dir);
    this.vmm.dir = dir;
    this.vmm.shim.moved(dir);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.vmm.destroy();
    await removeRunDirectory(this.vmm.dir);
  }
}

/** Everything that a waiting VMM is tied to, as one string. */
export function shapeKey(source: ChildSource, host: ChildHost): string {
  const { manifest, shape, image } = source;
  return JSON.stringify([shape, manifest.diskBytes, image, host.qemu, manifest.machine.engineSha256]);
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
    await Promise.all([linkImage(dir, source.image), makeOverlay(dir, source.manifest.diskBytes, host.user)]);
    const { shimBinary, abilities, user } = host;
    const argv = childArgv(host.qemu, source.shape);
    const vmm = await QemuVmm.start({ dir, argv, shimBinary, abilities, user }, signal);
    try {
      await enableEvents(vmm, signal);
      return new WaitingVmm(vmm);
    } catch (error) {
      await vmm.destroy();
      throw error;
    }
  } catch (error) {
    await removeRunDirectory(dir);
    throw error;
  }
}
