import { bootRig } from './machine.mjs';
import { machineParts, projectImage } from './parts.mjs';

/**
 * Makes what the rig is made of, where it has changed.
 *
 * @param {(text: string) => void} say progress, for people
 */
export async function rigParts(say) {
  const parts = await machineParts(say);
  return { ...parts, project: await projectImage(say) };
}

/**
 * Boots the rig.
 *
 * @param {string} dir directory of this run
 * @param {Awaited<ReturnType<typeof rigParts>>} parts
 * @param {(text: string) => void} say
 * @param {AbortSignal} [signal]
 * @returns {ReturnType<typeof bootRig>}
 */
export async function boot(dir, parts, say, signal) {
  say(`booting (kernel ${parts.kernelVersion}, emulated)`);
  const machine = await bootRig(dir, parts, signal);
  say(`up after ${(machine.bootMs / 1000).toFixed(1)} s`);
  return machine;
}
