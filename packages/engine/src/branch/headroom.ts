import { memoryLeftBy } from '../host/control-group.js';
import { heldMemory, holdMemory, usableMemory } from '../host/memory.js';

const MiB = 1024 * 1024;

/** Memory that is reserved for a clone, or why there is none. */
export type Headroom = { held: Disposable; lacking: null } | { held: null; lacking: string };

/** How much memory is left: in the control groups of a process (null: without bound), and on the host. Bytes. */
export interface MemoryLeft {
  group: number | null;
  host: number;
}

/**
 * Reserves what a clone of a VMM may come to cost: while it lives, each page that the source writes of those that it has for itself takes one more.
 *
 * @param pid of the VMM
 * @param privateBytes guest memory that it has for itself
 * @param look how much there is; of the host by default
 */
export async function reserveHeadroom(
  pid: number,
  privateBytes: number,
  look: (pid: number) => Promise<MemoryLeft> = memoryLeft,
): Promise<Headroom> {
  const { group, host } = await look(pid);
  const needed = `a clone of its memory may cost ${mib(privateBytes)} MiB more`;
  const lack = (where: string, bytes: number): Headroom => ({
    held: null,
    lacking: `${needed}, and ${where} ${mib(bytes)} MiB`,
  });
  if (group !== null && group < privateBytes)
    return lack('the memory limit of its control group leaves', group);
  if (host < privateBytes) return lack('the host can spare', host);
  return { held: holdMemory(privateBytes), lacking: null };
}

async function memoryLeft(pid: number): Promise<MemoryLeft> {
  const [group, host] = await Promise.all([memoryLeftBy(pid), usableMemory()]);
  return { group: group === null ? null : Math.max(0, group - heldMemory()), host };
}

function mib(bytes: number): number {
  return Math.round(bytes / MiB);
}
