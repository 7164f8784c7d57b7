import { open, readFile } from 'node:fs/promises';

const PAGE = 4096;
/** Bits of a /proc/PID/pagemap entry's upper half: present 63, swapped 62, file-mapped or shared 61. */
const PRESENT_OR_SWAPPED = 0xc0000000;
const SHARED = 0x20000000;

interface Mapping {
  start: number;
  end: number;
  path: string;
}

/**
 * Memory that a sandbox alone takes: private pages of its VMM and of its shim, bytes.
 *
 * Guest RAM is counted by pagemap: smaps calls page-cache pages that are not written back yet private and dirty
 * (design, section 3).
 *
 * @param memoryFile name under which the VMM maps the snapshot's base: the end of its path
 */
export async function privateMemory(vmmPid: number, shimPid: number, memoryFile: string): Promise<number> {
  const [smaps, shim] = await Promise.all([
    readFile(`/proc/${vmmPid}/smaps`, 'utf8'),
    readFile(`/proc/${shimPid}/smaps_rollup`, 'utf8').catch(() => ''), // A shim that died has no memory.
  ]);
  let bytes = sumPrivate(shim);
  const ram: Mapping[] = [];
  for (const block of smaps.split(/\n(?=[0-9a-f]+-[0-9a-f]+ )/)) {
    const mapping = parseMapping(block);
    if (mapping?.path.endsWith(memoryFile)) ram.push(mapping);
    else bytes += sumPrivate(block);
  }
  return bytes + (await privatePages(vmmPid, ram)) * PAGE;
}

function parseMapping(block: string): Mapping | null {
  const match = /^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s*(.*)/.exec(block);
  if (!match) return null;
  return { start: Number.parseInt(match[1]!, 16), end: Number.parseInt(match[2]!, 16), path: match[3]! };
}

function sumPrivate(block: string): number {
  let kib = 0;
  for (const match of block.matchAll(/^(?:Private_Dirty|Swap):\s+(\d+) kB/gm)) kib += Number(match[1]);
  return kib * 1024;
}

async function privatePages(pid: number, ram: readonly Mapping[]): Promise<number> {
  const pagemap = await open(`/proc/${pid}/pagemap`, 'r');
  let pages = 0;
  try {
    for (const { start, end } of ram) {
      const entries = Buffer.alloc(((end - start) / PAGE) * 8);
      const { bytesRead } = await pagemap.read(entries, 0, entries.length, (start / PAGE) * 8);
      for (let at = 4; at < bytesRead; at += 8) {
        const upper = entries.readUInt32LE(at);
        if ((upper & PRESENT_OR_SWAPPED) !== 0 && (upper & SHARED) === 0) pages++;
      }
    }
  } finally {
    await pagemap.close();
  }
  return pages;
}
