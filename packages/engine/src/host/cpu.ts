import { readFile } from 'node:fs/promises';

/** Features of the host's CPU, sorted, as /proc/cpuinfo names them. */
export async function cpuFlags(): Promise<string[]> {
  const text = await readFile('/proc/cpuinfo', 'utf8');
  const line = /^flags\s*:\s*(.*)$/m.exec(text)?.[1] ?? '';
  return line.split(/\s+/).filter(Boolean).sort();
}
