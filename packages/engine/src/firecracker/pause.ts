/**
 * The pause of a branch. Firecracker has no command that saves device state alone: a snapshot is asked for whose memory path is a directory. The
 * state is written and synced by then, and the open of that path fails. Saving has queued an event in guest memory, and Firecracker's event loop
 * goes on as soon as the request has failed; so memory is frozen where its main thread enters that open: state and memory are of one instant.
 */
import { join } from 'node:path';
import { EngineError } from '../errors.js';
import type { FrozenCapture, PauseScript, ShimAbilities } from '../shim/index.js';
import type { PreparedDisk } from '../vmm/types.js';
import { faultOf } from './api.js';
import { fcFiles } from './files.js';
import { requestBytes } from './http.js';
import { assertWholeState } from './state-file.js';

/** How such a save ends. Nothing else is taken for it: a version that ends otherwise may have done otherwise. */
const STATE_IS_SAVED =
  /^(Create snapshot error: )?Cannot perform open on the memory backing file: Is a directory \(os error 21\)$/;

/** Resumes a machine, as bytes. */
export const resumeRequest = requestBytes('PATCH', '/vm', { state: 'Resumed' });

/**
 * @throws EngineError unsupported where the shim may not follow a VMM
 */
export function pauseScript(
  disk: PreparedDisk,
  stateFile: string,
  abilities: ShimAbilities,
): Omit<PauseScript, 'deadlineMs'> {
  if (!abilities.attach && !abilities.injection)
    throw new EngineError(
      'unsupported',
      `a sandbox of engine firecracker is branched by following its VMM with ptrace, which this host refuses${abilities.reason ? `: ${abilities.reason}` : ''}`,
      {
        remedy:
          'Let the daemon use ptrace (a container needs CAP_SYS_PTRACE), or build the template for qemu.',
      },
    );
  return {
    socket: fcFiles.api,
    speaks: 'http',
    before: [
      requestBytes('PATCH', '/vm', { state: 'Paused' }),
      { copy: disk.below, to: disk.node },
      requestBytes('PUT', '/snapshot/create', {
        snapshot_type: 'Full',
        snapshot_path: stateFile,
        mem_file_path: fcFiles.noMemory,
      }),
    ],
    after: [resumeRequest],
    freezeAt: fcFiles.noMemory,
  };
}

/** Whether an answer says that the state was saved, and the memory was not. */
export function saysStateIsSaved({ status, text }: FrozenCapture['answer']): boolean {
  return status === 400 && STATE_IS_SAVED.test(faultOf(text));
}

/**
 * Makes sure that the pause has left the device state, whole.
 *
 * @throws EngineError vmm_failed
 */
export async function checkPause(
  dir: string,
  stateFile: string,
  { answer }: Pick<FrozenCapture, 'answer'>,
): Promise<void> {
  if (!saysStateIsSaved(answer))
    throw new EngineError(
      'vmm_failed',
      `Firecracker ended the save of its device state otherwise than the versions that are known: ${answer.status} ${faultOf(answer.text)}`,
      { remedy: 'Use a version of Firecracker that docs/engines.md names, or build the template for qemu.' },
    );
  await assertWholeState(join(dir, stateFile));
}
