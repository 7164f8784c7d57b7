import { join } from 'node:path';
import { type AgentSession, type Interpreter, openAgentSession, openInterpreter } from '../agent/index.js';
import { Brancher } from '../branch/brancher.js';
import { RunState } from '../branch/run-state.js';
import { EngineError, messageOf } from '../errors.js';
import { readTail } from '../read-tail.js';
import type { RamRange, VmmExit } from '../shim/index.js';
import type { Manifest, SnapshotStore } from '../snapshot/index.js';
import type { Branching, BranchOptions, ForkTimings, LogFunction, Machine } from '../types.js';
import { describeExit } from '../vmm/ended.js';
import type { Vmm } from '../vmm/types.js';
import { privateMemory } from './memory-use.js';
import { removeRunDirectory, type VmmUser } from './run-directory.js';
import { WallClock } from './wall-clock.js';

export interface MachineParts {
  id: string;
  vmm: Vmm;
  manifest: Manifest;
  generation: string;
  /** What its fork has set for every process. */
  env: Record<string, string>;
  hostname: string;
  timings: ForkTimings;
  log: LogFunction;
  /** Where guest RAM lies in the VMM. */
  ram: readonly RamRange[];
  store: SnapshotStore;
  user: VmmUser | undefined;
  /** A session that is open already, and what it follows. */
  session?: AgentSession;
  interpreters?: ReadonlyMap<string, Promise<Interpreter>>;
}

/** How long the agent of a running sandbox may take to answer a new connection, ms. */
const SESSION_MS = 15_000;

/** How long a VMM may take to exit when it is asked to, ms; then it is killed. */
const QUIT_MS = 5000;

/** A sandbox, whatever its engine. */
export class SandboxMachine implements Machine {
  readonly id: string;
  readonly snapshotId: string;
  readonly manifest: Manifest;
  readonly generation: string;
  readonly hostname: string;
  readonly timings: ForkTimings;
  readonly exited: Promise<VmmExit>;
  readonly #vmm: Vmm;
  readonly #env: Record<string, string>;
  readonly #log: LogFunction;
  readonly #runState: RunState;
  readonly #brancher: Brancher;
  readonly #clock = new WallClock(() => this.session());
  readonly #interpreters = new Map<string, Promise<Interpreter>>();
  #session: Promise<AgentSession> | undefined;
  #destroyed: Promise<void> | undefined;
  #over = false;

  constructor(parts: MachineParts) {
    this.id = parts.id;
    this.snapshotId = parts.manifest.id;
    this.manifest = parts.manifest;
    this.generation = parts.generation;
    this.hostname = parts.hostname;
    this.timings = parts.timings;
    this.exited = parts.vmm.shim.exited;
    this.#vmm = parts.vmm;
    this.#env = parts.env;
    this.#log = parts.log;
    this.#runState = new RunState(parts.vmm);
    this.#brancher = new Brancher({ ...parts, runState: this.#runState });
    if (parts.session) this.#keepSession(Promise.resolve(parts.session));
    for (const [name, opening] of parts.interpreters ?? []) this.#keepInterpreter(name, opening);
    this.#followShutdown();
    // Nobody waits for the answer of a guest that is gone.
    void this.exited.then(() => this.#closeSession());
  }

  get vmmPid(): number {
    return this.#vmm.shim.vmmPid;
  }

  async session(signal?: AbortSignal): Promise<AgentSession> {
    signal?.throwIfAborted();
    this.#session ??= this.#keepSession(
      openAgentSession({
        dial: (dialSignal) => this.#vmm.dialAgent(dialSignal),
        connectTimeoutMs: SESSION_MS,
      }),
    );
    return await this.#orExited(this.#session);
  }

  async interpreter(name?: string, signal?: AbortSignal): Promise<Interpreter> {
    const { interpreters } = this.manifest.template;
    const wanted = name === undefined ? interpreters[0] : interpreters.find((entry) => entry.name === name);
    if (!wanted) {
      const there = interpreters.map((entry) => entry.name).join(', ') || 'none';
      throw new EngineError(
        'interpreter_not_found',
        `sandbox ${this.id} has no ${name ?? 'warm'} interpreter; it has: ${there}`,
        { remedy: 'Fork from a template that declares it under "interpreters", or use exec.' },
      );
    }
    const known = this.#interpreters.get(wanted.name);
    if (known) return await this.#orExited(known);
    const identity = { generation: this.generation, env: this.#env };
    const opening = this.session(signal).then((session) => openInterpreter(session, wanted.handle, identity));
    this.#keepInterpreter(wanted.name, opening);
    return await this.#orExited(opening);
  }

  async pause(signal?: AbortSignal): Promise<void> {
    await this.#runState.pause(signal);
    const session = await this.#session?.catch(() => undefined); // One that did not open watches over nothing.
    session?.paused(true);
  }

  async resume(signal?: AbortSignal): Promise<void> {
    await this.#runState.resume(signal);
    const session = await this.#session?.catch(() => undefined);
    session?.paused(false);
  }

  async branch(options: BranchOptions): Promise<Branching> {
    const branching = await this.#orExited(this.#brancher.branch(options));
    const right = this.#clock.missed(branching.pauseMs).catch((error: unknown) => {
      if (!this.#over)
        this.#log('warn', `the wall clock of ${this.id} may be behind after a branch: ${messageOf(error)}`);
    });
    const ready = Promise.all([branching.ready, right]).then(([snapshot]) => snapshot);
    ready.catch(() => {}); // Told to who waits for it.
    return { ...branching, ready };
  }

  async logs(): Promise<{ console: string; vmm: string }> {
    return { console: await this.#vmm.console(), vmm: await readTail(join(this.#vmm.dir, 'vmm.log')) };
  }

  async memoryBytes(): Promise<number> {
    return await privateMemory(this.vmmPid, this.#vmm.shim.pid, this.#vmm.baseName(this.snapshotId));
  }

  destroy(): Promise<void> {
    this.#destroyed ??= this.#destroy();
    return this.#destroyed;
  }

  async #destroy(): Promise<void> {
    this.#over = true;
    await this.#closeSession();
    await this.#brancher.close();
    await this.#vmm.destroy();
    await removeRunDirectory(this.#vmm.dir);
  }

  async detach(): Promise<void> {
    this.#over = true;
    await this.#closeSession();
    this.#vmm.detach();
  }

  async #closeSession(): Promise<void> {
    const session = await this.#session?.catch(() => null); // One that did not open needs no closing.
    await session?.close();
  }

  /** Remembers a session until it ends; then the next call opens another. */
  #keepSession(opening: Promise<AgentSession>): Promise<AgentSession> {
    const forget = (): void => {
      if (this.#session !== opening) return;
      this.#session = undefined;
      this.#interpreters.clear();
    };
    this.#session = opening;
    opening.then((session) => session.closed.then(forget), forget);
    return opening;
  }

  /** Remembers what follows an interpreter; one that could not be followed is tried anew by the next call. */
  #keepInterpreter(name: string, opening: Promise<Interpreter>): void {
    this.#interpreters.set(name, opening);
    opening.catch(() => this.#interpreters.delete(name));
  }

  /** Waits for `promise`; an end of the VMM says more than a broken connection. */
  async #orExited<T>(promise: Promise<T>): Promise<T> {
    const ended = this.exited.then((exit): never => {
      throw new EngineError(
        'sandbox_exited',
        `sandbox ${this.id} has ended: its VMM ended ${describeExit(exit)}`,
        {
          remedy: `Remove it with "forkd rm ${this.id}" and fork another.`,
          details: { exit },
        },
      );
    });
    ended.catch(() => {});
    return await Promise.race([promise, ended]);
  }

  /** A guest that shuts itself down is kept stopped by its VMM until its last words have been read here. */
  #followShutdown(): void {
    this.#vmm.guestEnded
      .then(() => this.concludeShutdown())
      .catch((error: unknown) => {
        if (!this.#over) this.#log('debug', `monitor of sandbox ${this.id} is gone: ${messageOf(error)}`);
      });
  }

  /** Ends a VMM whose guest has shut down, once its last words are read. The VMM then exits with 0: a kill would pass for a fault. */
  async concludeShutdown(): Promise<void> {
    await this.#vmm.console();
    await this.#vmm.quit(QUIT_MS);
    const late = setTimeout(() => void this.#vmm.shim.kill().catch(() => {}), QUIT_MS);
    await this.exited;
    clearTimeout(late);
  }
}
