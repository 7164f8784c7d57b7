import { readFile } from 'node:fs/promises';
import { EngineError } from '../errors.js';
import { Held } from './held.js';

const MiB = 1024 * 1024;

/**
 * Memory that one more child takes until it has given its first answer, bytes: 16 MiB by MemAvailable on tcg (design, section 3)
 * and its shim, rounded up.
 */
export const CHILD_BYTES = 24 * MiB;

/** What is left to the host, bytes. */
const RESERVE_BYTES = 512 * MiB;

/** MemAvailable, bytes. */
export async function availableMemory(): Promise<number> {
  const text = await readFile('/proc/meminfo', 'utf8');
  const kib = /^MemAvailable:\s+(\d+) kB/m.exec(text)?.[1];
  if (kib === undefined) throw new EngineError('host_unfit', '/proc/meminfo has no MemAvailable');
  return Number(kib) * 1024;
}

/** What may be used of MemAvailable, bytes: not what stays with the host, nor what is reserved and not taken yet. */
export async function usableMemory(): Promise<number> {
  return Math.max(0, (await availableMemory()) - RESERVE_BYTES - pending.amount);
}

/** Reserves memory that is about to be taken. Dispose when it shows in MemAvailable, or is not needed any more. */
export function holdMemory(bytes: number): Disposable {
  return pending.hold(bytes);
}

/** Memory that {@link holdMemory} has reserved, bytes. */
export function heldMemory(): number {
  return pending.amount;
}

/** Of what is being started, and does not yet show in MemAvailable. */
const pending = new Held();

/**
 * Reserves memory for `n` children that are about to start. Dispose when they run or have failed.
 *
 * @param n number of children
 * @param extraBytes memory that each copies at its start, bytes
 * @throws EngineError insufficient_memory, with the numbers, before anything has started
 */
export async function reserveMemory(n: number, extraBytes: number): Promise<Disposable> {
  const each = CHILD_BYTES + extraBytes;
  const available = await usableMemory();
  const needed = n * each;
  if (needed > available) {
    const fit = Math.max(0, Math.floor(available / each));
    throw new EngineError(
      'insufficient_memory',
      `${n} children need ${mib(needed)} MiB (${mib(each)} each), and ${mib(available)} MiB can be used: ` +
        `${mib(RESERVE_BYTES)} MiB stay reserved for the host`,
      {
        remedy: fit > 0 ? `Fork at most ${fit}, or remove sandboxes.` : 'Remove sandboxes, or add memory.',
        details: { requested: n, bytes_each: each, bytes_available: available, possible: fit },
      },
    );
  }
  return holdMemory(needed);
}

function mib(bytes: number): number {
  return Math.round(bytes / MiB);
}
