import { readFile } from 'node:fs/promises';
import { EngineError } from '../errors.js';
import { frozenGroupOf } from '../host/control-group.js';

/**
 * Refuses a branch of a machine whose VMM does not run: it would not answer, and nobody could say whether it is right to let it go on. Somebody has
 * stopped it by a signal, holds it in a debugger, or has frozen its control group.
 *
 * @param pid of the VMM
 * @throws EngineError sandbox_not_running
 */
export async function assertRuns(sandbox: string, pid: number): Promise<void> {
  const status = await readFile(`/proc/${pid}/status`, 'latin1').catch(() => ''); // One that has ended is told by who asks it.
  const refuse = (problem: string, remedy: string) =>
    new EngineError(
      'sandbox_not_running',
      `sandbox ${sandbox} does not run: its VMM, process ${pid}, ${problem}`,
      {
        remedy,
      },
    );
  const state = /^State:\s+(\S)/m.exec(status)?.[1];
  if (state === 'T') throw refuse('was stopped by a signal', `Let it go on: kill -CONT ${pid}`);
  if (state === 't')
    throw refuse(
      `is held by process ${/^TracerPid:\s+(\d+)/m.exec(status)?.[1]}, a debugger`,
      'Let it go on there, and try again.',
    );
  const group = await frozenGroupOf(pid);
  if (group !== null)
    throw refuse(`is frozen with its control group ${group}`, 'Thaw the group, and try again.');
}
