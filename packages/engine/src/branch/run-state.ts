import type { Vmm } from '../vmm/types.js';

/**
 * Whether a machine is to run, as whoever has it wants: a branch pauses it for an instant, and leaves it as it is wanted. Nobody else pauses or
 * resumes it in that instant.
 */
export class RunState {
  readonly #vmm: Vmm;
  #paused = false;
  #instant: Promise<unknown> = Promise.resolve();

  constructor(vmm: Vmm) {
    this.#vmm = vmm;
  }

  async pause(signal?: AbortSignal): Promise<void> {
    await this.#instant;
    this.#paused = true;
    try {
      await this.#vmm.pause(signal);
    } catch (error) {
      this.#paused = false;
      throw error;
    }
  }

  async resume(signal?: AbortSignal): Promise<void> {
    await this.#instant;
    await this.#vmm.resume(signal);
    this.#paused = false;
  }

  /** Does the work of a branch's instant; `paused`: the machine stands still already, and is to stand still afterwards. */
  async instant<T>(work: (paused: boolean) => Promise<T>): Promise<T> {
    const result = work(this.#paused);
    this.#instant = result.catch(() => {}); // Told to who branches.
    return await result;
  }
}
