/**
 * Why a VMM ended by SIGBUS: a page of a file that it maps could not be had. Either the file has become shorter than what is mapped, or the page
 * had no block yet and the file system has none left, or neither is seen afterwards.
 */
import { stat } from 'node:fs/promises';
import { fullDisk } from '../host/disk-space.js';
import type { MappedFile, MemoryFault, VmmExit } from './types.js';

/** The signal of a mapped page that cannot be had. */
const SIGNAL = 'SIGBUS';

/** Adds to an end by SIGBUS what the files that were mapped say of it now. Other ends, and one that was looked into before, are as they were. */
export async function explainExit(exit: VmmExit, mapped: readonly MappedFile[]): Promise<VmmExit> {
  if (exit.kind !== 'signaled' || exit.signal !== SIGNAL || exit.memoryFault) return exit;
  return { ...exit, memoryFault: await memoryFault(mapped) };
}

async function memoryFault(mapped: readonly MappedFile[]): Promise<MemoryFault> {
  for (const { path, bytes } of mapped) {
    // One that was removed is whole for whoever maps it: its size is not known any more, and proves nothing.
    const facts = await stat(path, { bigint: true }).catch(() => null);
    if (facts !== null && facts.size < bytes)
      return { kind: 'cut_short', path, bytes: Number(bytes), now: Number(facts.size) };
  }
  for (const { path } of mapped) {
    const freeBytes = await fullDisk(path);
    if (freeBytes !== null) return { kind: 'disk_full', path, freeBytes };
  }
  return { kind: 'unknown', paths: mapped.map(({ path }) => path) };
}

/** For people: what happened to what, and what to do. */
export function describeFault(fault: MemoryFault): { what: string; remedy: string } {
  switch (fault.kind) {
    case 'cut_short':
      return {
        what: `its memory file ${fault.path} was cut short in place: it has ${fault.now} bytes, ${fault.bytes} were mapped`,
        remedy:
          'Remove the sandboxes of that snapshot, then the snapshot, and build its template again. Snapshot files must be removed, never shortened.',
      };
    case 'disk_full':
      return {
        what: `a page of its memory file ${fault.path} found no room: the file system has ${Math.floor(fault.freeBytes / 1024)} KiB free`,
        remedy: 'Free space there, or set FORKD_HOME to a directory on a larger disk.',
      };
    case 'unknown': {
      const files = fault.paths.length === 0 ? 'its memory' : fault.paths.join(', ');
      return {
        what: `a page of ${files} could not be had; no file is too short, and the disk is not full now`,
        remedy:
          "Look for I/O errors and memory failures in the host's kernel log (dmesg); the disk may have been full for a moment.",
      };
    }
  }
}
