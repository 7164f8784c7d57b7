import { unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { finished } from 'node:stream/promises';
import { orAborted } from '../deadline.js';
import { EngineError } from '../errors.js';
import type { RamRange, Shim } from '../shim/index.js';
import type { DiskLink } from '../snapshot/index.js';
import { connectUnix } from '../unix-socket.js';
import { orEnded } from '../vmm/ended.js';
import type { Loaded, LoadSource } from '../vmm/types.js';
import { belowFile, fileNode, vmmFiles } from './argv.js';
import type { Qmp } from './qmp.js';

/** A QEMU that waits for a snapshot. */
export interface WaitingQemu {
  dir: string;
  shim: Shim;
  qmp: Qmp;
}

/** Name by which /proc/PID/maps shows the memory of a child that waits for its graft. */
const CHILD_MEMORY = 'memfd:memory-backend-memfd';

/**
 * Puts a snapshot into a child that waits: memory, disk, device state. The child is paused before and after.
 *
 * @returns milliseconds of the graft and of the rest
 */
export async function loadChild(vmm: WaitingQemu, source: LoadSource, signal: AbortSignal): Promise<Loaded> {
  return orEnded(load(vmm, source, signal), vmm.shim, signal);
}

async function load(vmm: WaitingQemu, source: LoadSource, signal: AbortSignal): Promise<Loaded> {
  const start = performance.now();
  const graft = graftMemory(vmm, source, signal).then((ram) => ({ ram, graftMs: performance.now() - start }));
  const [{ ram, graftMs }] = await Promise.all([graft, attachDisk(vmm, source.disks, signal)]);
  await loadState(vmm, source.state, signal);
  return { ram, graftMs, loadMs: performance.now() - start - graftMs };
}

async function graftMemory(vmm: WaitingQemu, source: LoadSource, signal: AbortSignal): Promise<RamRange[]> {
  const ram = await vmm.shim.findRam(CHILD_MEMORY);
  await vmm.shim.graft({ ram, files: source.files, extents: source.extents }, signal);
  return ram;
}

/**
 * Puts the snapshot's disks below the overlay, which had none until now. All is sent at once: QEMU does it in order, and where one step is
 * refused so are those on top of it.
 */
async function attachDisk(vmm: WaitingQemu, disks: readonly DiskLink[], signal: AbortSignal): Promise<void> {
  const added = disks.map(({ format }, index) =>
    vmm.qmp.run(
      'blockdev-add',
      {
        driver: format,
        'node-name': belowNode(index),
        'read-only': true,
        file: fileNode(belowFile(index), true),
        ...(format === 'qcow2' && { backing: belowNode(index - 1) }),
      },
      { signal },
    ),
  );
  const overlay = {
    driver: 'qcow2',
    'node-name': 'overlay',
    cache: { 'no-flush': true },
    file: 'overlay-file',
    backing: belowNode(disks.length - 1),
  };
  await Promise.all([...added, vmm.qmp.run('blockdev-reopen', { options: [overlay] }, { signal })]);
}

function belowNode(index: number): string {
  return `below-${index}`;
}

/** Makes the monitor tell of the end of a load. Once, before `loadChild`. */
export async function enableEvents(vmm: WaitingQemu, signal: AbortSignal): Promise<void> {
  await vmm.qmp.run(
    'migrate-set-capabilities',
    { capabilities: [{ capability: 'events', state: true }] },
    { signal },
  );
}

async function loadState(vmm: WaitingQemu, state: Buffer, signal: AbortSignal): Promise<void> {
  const ended = vmm.qmp.event((event) => {
    const status = event.event === 'MIGRATION' ? event.data?.status : undefined;
    return status === 'completed' || status === 'failed';
  }, signal);
  ended.catch(() => {});
  await vmm.qmp.run('migrate-incoming', { uri: `unix:${vmmFiles.migration}` }, { signal });
  const path = join(vmm.dir, vmmFiles.migration);
  const stream = await connectUnix(path, signal);
  stream.on('error', () => {}); // A refused state breaks the connection; the event below tells.
  stream.end(state);
  const event = await ended;
  await orAborted(
    finished(stream.resume()).catch(() => {}),
    signal,
  );
  await unlink(path).catch(() => {}); // QEMU may have removed it itself.
  if (event.data?.status !== 'completed')
    throw new EngineError('vmm_failed', 'QEMU could not load the device state of the snapshot');
}
