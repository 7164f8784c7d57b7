import { deadline } from '../deadline.js';
import type { FrozenCapture, PauseScript } from '../shim/index.js';
import type { Vmm } from '../vmm/types.js';

/** How long a pause may take, ms. After it the shim resumes the source, whoever still works on it. */
const PAUSE_MS = 10_000;

/**
 * Lets a machine's shim pause it, freeze its memory, and resume it. Nothing of this process is waited for in the pause; should the shim die in
 * it, the machine is resumed from here.
 *
 * @returns milliseconds from the last guest instruction before to the first after, and those of each step
 * @throws what failed, once the machine runs again
 */
export async function pauseByShim(
  vmm: Vmm,
  script: Omit<PauseScript, 'deadlineMs'>,
): Promise<{ pauseMs: number; frozen: FrozenCapture }> {
  using limit = deadline('the pause of a branch', 2 * PAUSE_MS);
  const clock = vmm.clock(limit.signal);
  try {
    const frozen = await vmm.shim.captureFreeze({ ...script, deadlineMs: PAUSE_MS });
    return { pauseMs: await clock.ms(frozen), frozen };
  } catch (error) {
    await vmm.resume().catch(() => {}); // A VMM that is gone needs none; why is told by the error.
    throw error;
  }
}
