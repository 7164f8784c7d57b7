import { randomBytes } from 'node:crypto';
import { type AgentSession, openAgentSession } from '../agent/index.js';
import { setWallClock, wallClockNs } from '../machine/wall-clock.js';
import type { ForkChild } from '../types.js';
import type { Vmm } from '../vmm/types.js';

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
export function askAgent(vmm: Vmm, connectTimeoutMs: number): Promise<AgentSession> {
  const opening = openAgentSession({
    dial: (signal) => vmm.dialAgent(signal),
    connectTimeoutMs,
  });
  opening.catch(() => {});
  return opening;
}

/** Tells a machine who it is, and thaws what may run from then on. Its wall clock is right afterwards. */
export async function introduce(
  session: AgentSession,
  identity: Identity,
  thaw: { interpreters: boolean; user: boolean },
  signal: AbortSignal,
): Promise<void> {
  const began = performance.now();
  const { tookNs } = await session.hello(
    {
      ...identity,
      entropy: randomBytes(ENTROPY_BYTES),
      wallClockNs: wallClockNs(),
      machineId: randomBytes(16).toString('hex'),
      thaw,
    },
    signal,
  );
  // On a busy host the time that was sent is old when it is set: by at most how long the answer took, hooks aside.
  const late = performance.now() - began - Number(tookNs) / 1e6;
  await setWallClock(session, late, signal);
}
