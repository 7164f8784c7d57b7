import { randomBytes } from 'node:crypto';
import { type AgentSession, type Interpreter, openInterpreter } from '../agent/index.js';
import { deadline } from '../deadline.js';
import { SandboxMachine } from '../machine/machine.js';
import { type SandboxFile, storedRange, writeSandboxFile } from '../machine/sandbox-file.js';
import type { PrimedChild } from '../standby/primed.js';
import type { ForkChild, ForkTimings } from '../types.js';
import { orEnded } from '../vmm/ended.js';
import { askAgent, type Identity, introduce } from './identity.js';
import { CHILD_MS, type ChildHost, type ChildSource, startWaiting, type WaitingVmm } from './waiting.js';

/** What a child is made from: ahead of demand, or from nothing. */
export type Start =
  | { kind: 'primed'; child: PrimedChild }
  | { kind: 'process'; waiting: WaitingVmm }
  | { kind: 'none' };

const everything = { interpreters: true, user: true };

/**
 * Makes one child: a VMM of its own, the snapshot's memory and state in it, told who it is before anything in it runs.
 * Whatever fails, nothing of it is left.
 */
export async function startChild(
  source: ChildSource,
  host: ChildHost,
  child: ForkChild,
  start: Start,
  signal?: AbortSignal,
): Promise<SandboxMachine> {
  using limit = deadline(`the fork of ${child.id}`, CHILD_MS, signal);
  const { id, hostname, metadata } = child;
  const env = { ...source.manifest.template.env, ...child.env };
  const identity: Identity = { hostname, env, metadata, generation: randomBytes(16).toString('hex') };
  const clock = new PhaseClock();
  const waiting = await waitingOf(source, host, start, limit.signal);
  let settled: Promise<void> | undefined;
  try {
    clock.lap('spawnMs');
    const { vmm } = waiting;
    if (start.kind !== 'primed') {
      Object.assign(clock.timings, await waiting.load(source, limit.signal));
      clock.lap(null);
    }
    const facts = { id, snapshotId: source.manifest.id, generation: identity.generation, hostname, env };
    settled = settle(waiting, host, { ...facts, ram: waiting.ram.map(storedRange) });
    let session: AgentSession;
    const interpreters = new Map<string, Promise<Interpreter>>();
    if (start.kind === 'primed') {
      session = start.child.session;
      for (const [name, interpreter] of start.child.interpreters) {
        interpreter.identify({ generation: identity.generation, env });
        interpreters.set(name, Promise.resolve(interpreter));
      }
      session.paused(false);
      const told = introduce(session, identity, everything, limit.signal);
      await orEnded(Promise.all([told, vmm.resume(limit.signal), settled]), vmm.shim, limit.signal);
    } else {
      await settled;
      session = await orEnded(
        resumeAs(waiting, identity, limit.signal, (open) => {
          // Asked behind the hello: it follows the interpreter by the time that somebody has got the answer, and evaluates.
          const [first] = source.manifest.template.interpreters;
          if (first) interpreters.set(first.name, openInterpreter(open, first.handle, identity));
        }),
        vmm.shim,
        limit.signal,
      );
    }
    clock.lap('helloMs');
    const { manifest } = source;
    const { generation } = identity;
    const timings = clock.end();
    const { ram } = waiting;
    const { log, store, user } = host;
    log('debug', `the fork of ${id}`, { ...timings, start: start.kind });
    return new SandboxMachine({
      id,
      vmm,
      manifest,
      generation,
      env,
      hostname,
      timings,
      session,
      interpreters,
      ram,
      log,
      store,
      user,
    });
  } catch (error) {
    await settled?.catch(() => {}); // What is disposed of must not be given another name meanwhile.
    await waiting[Symbol.asyncDispose]();
    throw error;
  }
}

function waitingOf(
  source: ChildSource,
  host: ChildHost,
  start: Start,
  signal: AbortSignal,
): Promise<WaitingVmm> {
  switch (start.kind) {
    case 'primed':
      return Promise.resolve(start.child.waiting);
    case 'process':
      return Promise.resolve(start.waiting);
    case 'none':
      return startWaiting(source, host, signal);
  }
}

/** Makes what waits in a directory a sandbox that a later daemon would find. */
async function settle(waiting: WaitingVmm, host: ChildHost, facts: SandboxFile): Promise<void> {
  await writeSandboxFile(waiting.vmm.dir, facts);
  await waiting.moveTo(host.runRoot, facts.id);
}

/** Lets a loaded child run and tells it who it is. All its processes but the agent are frozen until hello has thawed them. */
async function resumeAs(
  waiting: WaitingVmm,
  identity: Identity,
  signal: AbortSignal,
  asked: (session: AgentSession) => void,
): Promise<AgentSession> {
  const opening = askAgent(waiting.vmm, CHILD_MS);
  await waiting.vmm.resume(signal);
  const session = await opening;
  try {
    const told = introduce(session, identity, everything, signal);
    asked(session);
    await told;
    return session;
  } catch (error) {
    await session.close();
    throw error;
  }
}

/** Milliseconds of the phases of one fork. */
class PhaseClock {
  readonly timings: ForkTimings = { spawnMs: 0, graftMs: 0, loadMs: 0, helloMs: 0, totalMs: 0 };
  readonly #start = performance.now();
  #last = this.#start;

  /** Ends a phase; null for one that is measured elsewhere. */
  lap(phase: 'spawnMs' | 'helloMs' | null): void {
    const now = performance.now();
    if (phase) this.timings[phase] = now - this.#last;
    this.#last = now;
  }

  end(): ForkTimings {
    return { ...this.timings, totalMs: performance.now() - this.#start };
  }
}
