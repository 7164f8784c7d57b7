import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { EngineError } from '../errors.js';
import { type FirecrackerApi, FirecrackerRefusal } from './api.js';
import { fcFiles } from './files.js';
import { assertWholeState } from './state-file.js';

/** A Full or Diff snapshot writes guest memory: as long as that may take, ms. */
const DUMP_MS = 300_000;

/**
 * How a save ends whose memory path is a directory: the state is written and synced by then, and the machine stays paused and whole.
 * Nothing else is taken for it.
 */
const STATE_IS_SAVED =
  /^(Create snapshot error: )?Cannot perform open on the memory backing file: Is a directory \(os error 21\)$/;

/** Whether a refusal says that the state was saved, and the memory was not. */
export function saysStateIsSaved(error: unknown): boolean {
  return error instanceof FirecrackerRefusal && error.status === 400 && STATE_IS_SAVED.test(error.fault);
}

/**
 * Saves the device state of a paused machine, and none of its memory, which the shim captures. A version that behaves otherwise is asked
 * for a Diff snapshot, whose memory is thrown away.
 *
 * @param dir the VMM's working directory
 * @param filename where to, in it
 */
export async function saveDeviceState(
  api: FirecrackerApi,
  dir: string,
  filename: string,
  signal?: AbortSignal,
): Promise<void> {
  await rm(join(dir, filename), { force: true });
  await mkdir(join(dir, fcFiles.noMemory), { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
  });
  const request = { snapshot_type: 'Full', snapshot_path: filename, mem_file_path: fcFiles.noMemory };
  try {
    await api.put('/snapshot/create', request, { signal });
    throw new EngineError('vmm_failed', 'Firecracker has written memory over a directory');
  } catch (error) {
    if (!(error instanceof FirecrackerRefusal)) throw error;
    if (!saysStateIsSaved(error)) return await saveWithDiff(api, dir, filename, signal);
  }
  await assertWholeState(join(dir, filename));
}

async function saveWithDiff(
  api: FirecrackerApi,
  dir: string,
  filename: string,
  signal?: AbortSignal,
): Promise<void> {
  const memory = `${filename}.memory`;
  await Promise.all([filename, memory].map((name) => rm(join(dir, name), { force: true })));
  try {
    const request = { snapshot_type: 'Diff', snapshot_path: filename, mem_file_path: memory };
    await api.put('/snapshot/create', request, { signal, timeoutMs: DUMP_MS });
    await assertWholeState(join(dir, filename));
  } finally {
    await rm(join(dir, memory), { force: true });
  }
}

/** Saves a paused machine whole: device state, and a memory file of its own. */
export async function saveWhole(
  api: FirecrackerApi,
  dir: string,
  names: { state: string; memory: string },
  signal?: AbortSignal,
): Promise<void> {
  const request = { snapshot_type: 'Full', snapshot_path: names.state, mem_file_path: names.memory };
  await api.put('/snapshot/create', request, { signal, timeoutMs: DUMP_MS });
  await assertWholeState(join(dir, names.state));
}
