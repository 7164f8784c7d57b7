/** What scenarios share. */
import type { ExecOptions, Sandbox } from '@forkd/sdk';
import { ForkdError } from '@forkd/sdk';
import type { Stage } from './types.js';

/** Runs shell text that must succeed. Answers its output without the newline at the end. */
export async function sh(box: Sandbox, text: string, options: ExecOptions = {}): Promise<string> {
  const { outcome, exit_code, stdout, stderr } = await box.exec(
    { shell: text },
    { timeoutSecs: 300, ...options },
  );
  if (outcome.kind !== 'exited' || exit_code !== 0)
    throw new Error(`${text}: ${JSON.stringify(outcome)}\n${stdout}\n${stderr}`);
  return stdout.replace(/\n$/, '');
}

/** What a child of a snapshot answers to a command. */
export async function inChild(stage: Stage, snapshot: string, command: string): Promise<string> {
  await using children = await stage.fork(1, { snapshot });
  return await sh(children.box, command);
}

/** Removes a snapshot with all that stands on it; one that is gone is removed. */
export async function drop(stage: Stage, id: string): Promise<void> {
  await stage.client.snapshots.removeWithDependents(id).catch((error: { code?: string }) => {
    if (error.code !== 'snapshot_not_found') throw error;
  });
}

/** The code of a call that must fail. */
export async function codeOf(call: Promise<unknown>): Promise<string> {
  try {
    const value = await call;
    throw new Error(`should have failed, and answered ${JSON.stringify(value)?.slice(0, 500)}`);
  } catch (error) {
    if (error instanceof ForkdError) return error.code;
    throw error;
  }
}
