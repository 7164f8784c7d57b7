import { availableParallelism } from 'node:os';
import pLimit from 'p-limit';
import { EngineError } from '../errors.js';
import { reserveMemory } from '../host/memory.js';
import { reserveFiles } from '../host/open-files.js';
import type { Standby } from '../standby/standby.js';
import type { ForkChild, ForkRequest, ForkResult } from '../types.js';
import { startChild } from './child.js';
import type { ChildHost, ChildSource } from './waiting.js';

/** Largest number of children of one request. */
export const MAX_CHILDREN = 1000;

/** Children that start at a time for each core: two keep a core busy while one of them waits for its VMM. */
const STARTS_PER_CORE = 2;

/** All starts of this process share the bound, whatever request they belong to. */
const starts = pLimit(Math.max(2, availableParallelism() * STARTS_PER_CORE));

/**
 * Forks children of a snapshot. One that fails does not fail the others.
 *
 * @param copiedBytes memory that each child copies at its start, bytes
 * @throws EngineError invalid_argument, insufficient_memory, limit_reached: before anything has started
 * @returns a result per child, in the order of the request
 */
export async function forkChildren(
  source: ChildSource,
  host: ChildHost,
  request: ForkRequest,
  standby: Standby,
  copiedBytes: number,
): Promise<ForkResult[]> {
  const { children, signal, onChild } = request;
  if (children.length < 1 || children.length > MAX_CHILDREN)
    throw new EngineError('invalid_argument', `n: ${children.length} is not from 1 to ${MAX_CHILDREN}`);
  using _busy = standby.busy();
  using _files = await reserveFiles(children.length);
  using _memory = await reserveMemory(children.length, copiedBytes);
  return await Promise.all(
    children.map((child) =>
      starts(async (): Promise<ForkResult> => {
        const result = await startOne(source, host, child, standby, signal);
        onChild?.(result);
        return result;
      }),
    ),
  );
}

async function startOne(
  source: ChildSource,
  host: ChildHost,
  child: ForkChild,
  standby: Standby,
  signal?: AbortSignal,
): Promise<ForkResult> {
  try {
    signal?.throwIfAborted();
    const start = await standby.claim(source, host);
    return { ok: true, id: child.id, machine: await startChild(source, host, child, start, signal) };
  } catch (error) {
    return { ok: false, id: child.id, error };
  }
}
