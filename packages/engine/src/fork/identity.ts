import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { type AgentSession, openAgentSession } from '../agent/index.js';
import { vmmFiles } from '../qemu/argv.js';
import type { QemuVmm } from '../qemu/vmm.js';
import type { ForkChild } from '../types.js';
import { connectUnix } from '../unix-socket.js';

/** Who a machine is from now on. */
export type Identity = Pick<ForkChild, 'hostname' | 'env' | 'metadata'> & {
  /** 32 hex digits. */
  generation: string;
};

/** Bytes of entropy that a machine gets at each fork. */
const ENTROPY_BYTES = 64;

/**
 * Opens a session with the agent of a loaded, paused machine: asked before it runs, answered as its first act.
 *
 * @param connectTimeoutMs how long the answer may take, ms
 */
export function askAgent(vmm: QemuVmm, connectTimeoutMs: number): Promise<AgentSession> {
  const opening = openAgentSession({
    dial: (signal) => connectUnix(join(vmm.dir, vmmFiles.agent), signal),
    connectTimeoutMs,
  });
  opening.catch(() => {});
  return opening;
}

/** Tells a machine who it is, and thaws what may run from then on. */
export async function introduce(
  session: AgentSession,
  identity: Identity,
  thaw: { interpreters: boolean; user: boolean },
  signal: AbortSignal,
): Promise<void> {
  await session.hello(
    {
      ...identity,
      entropy: randomBytes(ENTROPY_BYTES),
      wallClockNs: BigInt(Date.now()) * 1_000_000n,
      machineId: randomBytes(16).toString('hex'),
      thaw,
    },
    signal,
  );
}
