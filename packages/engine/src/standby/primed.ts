import { randomBytes } from 'node:crypto';
import { type AgentSession, type Interpreter, openInterpreter } from '../agent/index.js';
import { deadline } from '../deadline.js';
import { askAgent, introduce } from '../fork/identity.js';
import {
  CHILD_MS,
  type ChildHost,
  type ChildSource,
  startWaiting,
  type WaitingVmm,
} from '../fork/waiting.js';
import { orEnded } from '../vmm/ended.js';

/** A child that was loaded, ran its template's `prime`, and is paused until somebody claims it. */
export class PrimedChild implements AsyncDisposable {
  readonly waiting: WaitingVmm;
  readonly session: AgentSession;
  /** Warm interpreters by name, followed already. */
  readonly interpreters: ReadonlyMap<string, Interpreter>;

  constructor(waiting: WaitingVmm, session: AgentSession, interpreters: ReadonlyMap<string, Interpreter>) {
    this.waiting = waiting;
    this.session = session;
    this.interpreters = interpreters;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.session.close();
    await this.waiting[Symbol.asyncDispose]();
  }
}

/** Longest that one prime expression may take, ms. */
const PRIME_MS = 20_000;

const interpretersOnly = { interpreters: true, user: false };

/**
 * Makes a child ahead of demand. It has a generation of its own, which its claim replaces; processes of the template's user stay
 * frozen in it, only interpreters run.
 */
export async function primeChild(
  source: ChildSource,
  host: ChildHost,
  signal: AbortSignal,
): Promise<PrimedChild> {
  using limit = deadline('a primed child', CHILD_MS, signal);
  const waiting = await startWaiting(source, host, limit.signal);
  try {
    await waiting.load(source, limit.signal);
    return await orEnded(prime(waiting, source, limit.signal), waiting.vmm.shim, limit.signal);
  } catch (error) {
    await waiting[Symbol.asyncDispose]();
    throw error;
  }
}

async function prime(waiting: WaitingVmm, source: ChildSource, signal: AbortSignal): Promise<PrimedChild> {
  const opening = askAgent(waiting.vmm, CHILD_MS);
  await waiting.vmm.resume(signal);
  const session = await opening;
  try {
    const generation = randomBytes(16).toString('hex');
    await introduce(
      session,
      { generation, hostname: 'standby', env: {}, metadata: '{}' },
      interpretersOnly,
      signal,
    );
    const followed = await evaluate(session, source, signal);
    await session.freeze({ interpreters: true, user: false });
    // It may wait for minutes: a session that takes this for silence would be lost by the time of the claim.
    session.paused(true);
    await waiting.vmm.pause(signal);
    return new PrimedChild(waiting, session, followed);
  } catch (error) {
    await session.close();
    throw error;
  }
}

/** Runs the `prime` expressions, so that their code is translated and their memory is touched before the claim. */
async function evaluate(
  session: AgentSession,
  source: ChildSource,
  signal: AbortSignal,
): Promise<Map<string, Interpreter>> {
  const { interpreters, prime: expressions } = source.manifest.template;
  const followed = new Map<string, Interpreter>();
  for (const { name, handle } of interpreters) {
    const interpreter = await openInterpreter(session, handle);
    followed.set(name, interpreter);
    for (const { code } of expressions.filter((entry) => entry.interpreter === name))
      await interpreter.eval(code, { timeoutMs: PRIME_MS, signal });
  }
  return followed;
}
