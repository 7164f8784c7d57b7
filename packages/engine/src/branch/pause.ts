import { deadline } from '../deadline.js';
import { EngineError } from '../errors.js';
import type { FrozenCapture, PauseScript } from '../shim/index.js';
import type { Vmm } from '../vmm/types.js';

/** How long a pause may take, ms. After it the shim resumes the source, whoever still works on it. */
const PAUSE_MS = 10_000;

/**
 * Does something while a machine is paused, and resumes it whatever happens: by us, or by its shim.
 *
 * @returns milliseconds from the last guest instruction before to the first after
 * @throws what `work` threw, once the machine runs again
 */
export async function pauseFor(vmm: Vmm, work: () => Promise<void>): Promise<number> {
  await vmm.shim.armResume({ ...vmm.resumeRecipe, deadlineMs: PAUSE_MS });
  using limit = deadline('the pause of a branch', PAUSE_MS);
  const clock = vmm.clock(limit.signal);
  try {
    await vmm.pause();
    await work();
  } finally {
    await vmm.resume();
  }
  if (!(await vmm.shim.disarmResume()))
    throw new EngineError(
      'timeout',
      `the pause of a branch took longer than ${PAUSE_MS / 1000} s: its shim resumed the source`,
    );
  return await clock.ms();
}

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
    return { pauseMs: await clock.ms(), frozen };
  } catch (error) {
    await vmm.resume().catch(() => {}); // A VMM that is gone needs none; why is told by the error.
    throw error;
  }
}
