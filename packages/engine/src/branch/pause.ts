import { deadline } from '../deadline.js';
import { EngineError } from '../errors.js';
import { vmmFiles } from '../qemu/argv.js';
import type { QmpEvent } from '../qemu/qmp.js';
import type { QemuVmm } from '../qemu/vmm.js';

/** How long a pause may take, ms. After it the shim resumes the source, whoever still works on it. */
const PAUSE_MS = 10_000;

/** What the shim sends to its own monitor when the daemon is gone, or late. */
const recipe = [JSON.stringify({ execute: 'qmp_capabilities' }), JSON.stringify({ execute: 'cont' })];

/**
 * Does something while a machine is paused, and resumes it whatever happens: by us, or by its shim.
 *
 * @returns milliseconds from the last guest instruction before to the first after, by QEMU's own clock
 * @throws what `work` threw, once the machine runs again
 */
export async function pauseFor(vmm: QemuVmm, work: () => Promise<void>): Promise<number> {
  await vmm.shim.armResume({ socket: vmmFiles.shimMonitor, lines: recipe, deadlineMs: PAUSE_MS });
  using limit = deadline('the pause of a branch', PAUSE_MS);
  const stopped = vmm.qmp.event((event) => event.event === 'STOP', limit.signal);
  const resumed = vmm.qmp.event((event) => event.event === 'RESUME', limit.signal);
  for (const promise of [stopped, resumed]) promise.catch(() => {}); // Waited for below, or told by what failed before.
  try {
    await vmm.stop();
    await work();
  } finally {
    await vmm.cont();
  }
  if (!(await vmm.shim.disarmResume()))
    throw new EngineError(
      'timeout',
      `the pause of a branch took longer than ${PAUSE_MS / 1000} s: its shim resumed the source`,
    );
  return (timeOf(await resumed) - timeOf(await stopped)) / 1000;
}

/** Microseconds. */
function timeOf(event: QmpEvent): number {
  const { seconds, microseconds } = event.timestamp ?? { seconds: 0, microseconds: 0 };
  return seconds * 1e6 + microseconds;
}
