import { deadline } from '../deadline.js';
import type { FrozenCapture, PauseScript } from '../shim/index.js';
import type { Vmm } from '../vmm/types.js';

/** How long a pause may take, ms. After it the shim resumes the source, whoever still works on it. */
const PAUSE_MS = 10_000;

/**
 * Lets a machine's shim pause it, freeze its memory, and resume it. Nothing of this process is waited for in the pause; should the shim die in
 * it, the machine is resumed from here.
 *
 * @param paused it stands still already, and is left so: the script's stop and resume are left out
 * @returns milliseconds from the last guest instruction before to the first after (0 where it was paused), and those of each step
 * @throws what failed, once the machine runs again
 */
export async function pauseByShim(
  vmm: Vmm,
  script: Omit<PauseScript, 'deadlineMs'>,
  paused: boolean,
): Promise<{ pauseMs: number; frozen: FrozenCapture }> {
  if (paused) {
    const still = { ...script, before: script.before.slice(1), after: [], deadlineMs: PAUSE_MS };
    return { pauseMs: 0, frozen: await vmm.shim.captureFreeze(still) };
  }
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
