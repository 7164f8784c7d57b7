/** What scenarios share. */
import { randomBytes } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecOptions, Sandbox } from '@forkd/sdk';
import { ForkdError } from '@forkd/sdk';
import { eventually } from '../support/wait.js';
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

/** Removes all branches of a sandbox. A daemon that died may have finished one just before. */
export async function dropAllOf(stage: Stage, sandbox: string): Promise<void> {
  const all = await stage.client.snapshots.list();
  for (const { id, branched_from } of all) if (branched_from === sandbox) await drop(stage, id);
}

/** How the writing of a branch ended, waited for: ready, failed, or gone. */
export async function settled(stage: Stage, id: string): Promise<string> {
  return await eventually(async () => {
    const info = (await stage.client.snapshots.list()).find((one) => one.id === id);
    return info?.status === 'writing' ? undefined : (info?.status ?? 'gone');
  }, 60_000 * stage.slowness);
}

/** What lies in the directory of snapshots, of one or of all; what is hidden is half made. */
export function snapshotFiles(stage: Stage, id = ''): string[] {
  return readdirSync(join(stage.home, 'snapshots')).filter((name) => name.includes(id));
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

/** Memory and disk that `SAME` finds again. */
export async function mark(box: Sandbox): Promise<void> {
  await box.files.write('/dev/shm/x', randomBytes(4 << 20));
  await sh(box, 'md5sum < /dev/shm/x > /dev/shm/sum; echo kept > /root/kept; sync');
}

export const SAME = 'md5sum < /dev/shm/x | diff - /dev/shm/sum && cat /root/kept';
