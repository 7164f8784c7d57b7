import { unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { finished } from 'node:stream/promises';
import { orAborted } from '../deadline.js';
import { EngineError } from '../errors.js';
import type { GraftExtent } from '../memory/index.js';
import { connectUnix } from '../unix-socket.js';
import { fileNode, vmmFiles } from './argv.js';
import { orEnded, type QemuVmm } from './vmm.js';

/** What a child is loaded from. */
export interface LoadSource {
  /** Memory files, base first: absolute paths. */
  files: readonly { path: string; bytes: bigint }[];
  extents: readonly GraftExtent[];
  /** Device state as QEMU wrote it. */
  state: Buffer;
}

/** Name by which /proc/PID/maps shows the memory of a child that waits for its graft. */
const CHILD_MEMORY = 'memfd:memory-backend-memfd';

/**
 * Puts a snapshot into a child that waits: memory, disk, device state. The child is paused before and after.
 *
 * @returns milliseconds of the graft and of the rest
 */
export async function loadChild(
  vmm: QemuVmm,
  source: LoadSource,
  signal: AbortSignal,
): Promise<{ graftMs: number; loadMs: number }> {
  return orEnded(load(vmm, source, signal), vmm.shim, signal);
}

async function load(
  vmm: QemuVmm,
  source: LoadSource,
  signal: AbortSignal,
): Promise<{ graftMs: number; loadMs: number }> {
  const start = performance.now();
  const graft = graftMemory(vmm, source, signal).then(() => performance.now() - start);
  const [graftMs] = await Promise.all([graft, attachDisk(vmm, signal)]);
  await loadState(vmm, source.state, signal);
  return { graftMs, loadMs: performance.now() - start - graftMs };
}

async function graftMemory(vmm: QemuVmm, source: LoadSource, signal: AbortSignal): Promise<void> {
  const ram = await vmm.shim.findRam(CHILD_MEMORY);
  await vmm.shim.graft({ ram, files: source.files, extents: source.extents }, signal);
}

/** Puts the snapshot's disk below the overlay, which had none until now. */
async function attachDisk(vmm: QemuVmm, signal: AbortSignal): Promise<void> {
  await vmm.qmp.run(
    'blockdev-add',
    {
      driver: 'raw',
      'node-name': 'below',
      'read-only': true,
      file: fileNode(vmmFiles.disk, true),
    },
    { signal },
  );
  await vmm.qmp.run(
    'blockdev-reopen',
    {
      options: [
        {
          driver: 'qcow2',
          'node-name': 'overlay',
          cache: { 'no-flush': true },
          file: 'overlay-file',
          backing: 'below',
        },
      ],
    },
    { signal },
  );
}

/** Makes the monitor tell of the end of a load. Once, before `loadChild`. */
export async function enableEvents(vmm: QemuVmm, signal: AbortSignal): Promise<void> {
  await vmm.qmp.run(
    'migrate-set-capabilities',
    { capabilities: [{ capability: 'events', state: true }] },
    { signal },
  );
}

async function loadState(vmm: QemuVmm, state: Buffer, signal: AbortSignal): Promise<void> {
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
