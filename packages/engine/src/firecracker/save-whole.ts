import { join } from 'node:path';
import type { FirecrackerApi } from './api.js';
import { assertWholeState } from './state-file.js';

/** A Full snapshot writes guest memory: as long as that may take, ms. */
const DUMP_MS = 300_000;

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
