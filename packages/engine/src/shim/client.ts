import { SHIM_MAX_PAYLOAD, shimFrames } from '@forkd/wire';
import { EngineError, messageOf } from '../errors.js';
import { hostFault } from '../host/fault.js';
import { type ShimConnection, ShimRefusal } from './connection.js';
import { PayloadReader, PayloadWriter } from './frames.js';
import { explainExit } from './memory-fault.js';
import {
  decodeFrozen,
  decodeLayer,
  decodePrepared,
  decodeRanges,
  encodeArm,
  encodeCapture,
  encodeGraft,
  encodePause,
  type ShimInfo,
} from './protocol.js';
import { runs } from './record.js';
import type {
  CapturedLayer,
  CapturePlan,
  FrozenCapture,
  GraftRequest,
  MappedFile,
  PauseScript,
  PreparedCapture,
  RamRange,
  ResumeRecipe,
  Shim,
  ShimAbilities,
  VmmExit,
} from './types.js';

const EMPTY = Buffer.alloc(0);
const REQUEST_MS = 10_000;
/** Time between freeze and copy. */
const CAPTURE_MS = 60_000;
/** A copy of all memory to a slow disk. */
const COPY_MS = 30 * 60_000;
/** Longest deadline of a recipe, ms. */
const MAX_DEADLINE_MS = 0x7fffffff;

/** Finds the shim of a directory again whose connection broke: the same, or a new one that has taken over. Throws `sandbox_exited` when the VMM is gone. */
export type Recover = (dir: string) => Promise<{ connection: ShimConnection; info: ShimInfo }>;

/** A shim over its connection. When the shim dies under a VMM that lives, a new one takes over and this object goes on with it. */
export class ShimClient implements Shim {
  readonly exited: Promise<VmmExit>;
  readonly vmmPid: number;
  readonly vmmStartTime: bigint;
  readonly #recover: Recover;
  #dir: string;
  #info: ShimInfo;
  #mapped: readonly MappedFile[];
  /** Rejects when there is nothing left to talk to. */
  #connection: Promise<ShimConnection>;
  #settled = false;
  /** No successor could be had the last time; the next request tries again. */
  #orphaned = false;
  #leaving = false;
  #tellExit: (exit: VmmExit) => void = () => {};

  constructor(
    connection: ShimConnection,
    info: ShimInfo,
    dir: string,
    recover: Recover,
    mapped: readonly MappedFile[] = [],
  ) {
    this.#info = info;
    this.#mapped = mapped;
    this.#dir = dir;
    this.vmmPid = info.vmmPid;
    this.vmmStartTime = info.vmmStartTime;
    this.#recover = recover;
    this.exited = new Promise((resolve) => {
      this.#tellExit = resolve;
    });
    this.#connection = Promise.resolve(connection);
    this.#watch(connection);
  }

  get pid(): number {
    return this.#info.pid;
  }

  get startTime(): bigint {
    return this.#info.startTime;
  }

  get abilities(): ShimAbilities {
    return this.#info.abilities;
  }

  maps(files: readonly MappedFile[]): void {
    this.#mapped = files;
  }

  async findRam(name: string): Promise<RamRange[]> {
    return decodeRanges(
      await this.#ask(shimFrames.FIND_RAM, new PayloadWriter().text(name).done(), 'search for guest RAM'),
    );
  }

  async graft(request: GraftRequest, signal?: AbortSignal): Promise<number> {
    const payload = encodeGraft(request, REQUEST_MS);
    if (payload.length > SHIM_MAX_PAYLOAD)
      throw new EngineError('engine_error', `a graft of ${request.extents.length} extents is too large`, {
        remedy: 'Flatten the snapshot.',
      });
    this.maps(request.files);
    // A copy of everything (no injection) takes as long as the memory is large.
    const answer = new PayloadReader(
      await this.#ask(shimFrames.GRAFT, payload, 'graft', 6 * REQUEST_MS, signal),
    );
    return answer.u32() / 1000;
  }

  async armResume(recipe: ResumeRecipe): Promise<void> {
    const { deadlineMs } = recipe;
    if (!Number.isInteger(deadlineMs) || deadlineMs < 0 || deadlineMs > MAX_DEADLINE_MS)
      throw new EngineError(
        'invalid_argument',
        `deadlineMs ${deadlineMs} is not a whole number of 0 to ${MAX_DEADLINE_MS}`,
      );
    await this.#ask(shimFrames.ARM, encodeArm(recipe), 'arming the resume recipe');
  }

  async disarmResume(): Promise<boolean> {
    const answer = await this.#ask(shimFrames.DISARM, EMPTY, 'disarming the resume recipe');
    return new PayloadReader(answer).u32() !== 0;
  }

  async capturePrepare(plan: CapturePlan): Promise<PreparedCapture> {
    const payload = encodeCapture(plan, plan.timeoutMs ?? CAPTURE_MS);
    return decodePrepared(await this.#ask(shimFrames.CAPTURE_PREPARE, payload, 'preparation of a capture'));
  }

  async captureFreeze(pause?: PauseScript): Promise<FrozenCapture> {
    const payload = pause ? encodePause(pause) : EMPTY;
    const limit = REQUEST_MS + (pause?.deadlineMs ?? 0);
    return decodeFrozen(await this.#ask(shimFrames.CAPTURE_FREEZE, payload, 'freeze', limit));
  }

  async captureCopy(signal?: AbortSignal): Promise<CapturedLayer> {
    try {
      return decodeLayer(
        await this.#ask(shimFrames.CAPTURE_COPY, EMPTY, 'copy of a capture', COPY_MS, signal),
      );
    } catch (error) {
      // A capture that nobody waits for must not live on; where it has ended by itself this does nothing.
      await this.captureAbort().catch(() => {});
      throw error;
    }
  }

  async captureAbort(): Promise<void> {
    await this.#ask(shimFrames.CAPTURE_ABORT, EMPTY, 'abort of a capture');
  }

  async kill(): Promise<VmmExit> {
    for (let attempt = 0; !this.#settled; attempt++) {
      try {
        await this.#ask(shimFrames.KILL, EMPTY, 'kill');
        break;
      } catch (error) {
        // The shim may have died just now: its successor is asked, or the VMM turns out to be gone.
        if (this.#settled) break;
        if (attempt > 0) throw error;
      }
    }
    return this.exited;
  }

  async end(): Promise<void> {
    this.#leaving = true;
    const connection = await this.#connection.catch(() => null);
    if (!connection) return;
    try {
      await connection.request(shimFrames.END, EMPTY, 'end', REQUEST_MS);
    } catch (error) {
      // It is gone already, and that was asked for.
      if (error instanceof ShimRefusal) throw asEngineError(error);
    }
    await connection.closed;
  }

  moved(dir: string): void {
    this.#dir = dir;
  }

  detach(): void {
    this.#leaving = true;
    void this.#connection.then(
      (connection) => connection.close(),
      () => {},
    );
  }

  async #ask(
    type: number,
    payload: Buffer,
    what: string,
    timeoutMs = REQUEST_MS,
    signal?: AbortSignal,
  ): Promise<Buffer> {
    if (this.#orphaned && !this.#settled) this.#succeed();
    const connection = await this.#connection;
    try {
      return await connection.request(type, payload, what, timeoutMs, signal);
    } catch (error) {
      throw asEngineError(error);
    }
  }

  #settle(exit: VmmExit): void {
    this.#settled = true;
    void explainExit(exit, this.#mapped).then(this.#tellExit);
  }

  #watch(connection: ShimConnection): void {
    void connection.exit.then((exit) => this.#settle(exit));
    void connection.closed.then(() => {
      if (this.#leaving) return;
      if (this.#settled) this.#connection = rejected(this.#death());
      else this.#succeed();
    });
  }

  #death(): EngineError {
    return new EngineError('vmm_failed', `shim ${this.pid} of VMM ${this.vmmPid} has died`);
  }

  /** Looks for the successor of a shim that is gone. */
  #succeed(): void {
    this.#orphaned = false;
    this.#connection = this.#replace();
    this.#connection.catch(() => {});
  }

  async #replace(): Promise<ShimConnection> {
    try {
      const { connection, info } = await this.#recover(this.#dir);
      this.#info = info;
      this.#watch(connection);
      if (this.#leaving) connection.close();
      return connection;
    } catch (error) {
      const recorded = error instanceof EngineError && error.code === 'sandbox_exited';
      // A directory that says nothing of a VMM is no proof of its end.
      if (recorded && !(await runs(this.vmmPid, this.vmmStartTime))) {
        const exit = error.details?.exit as VmmExit | undefined;
        this.#settle(exit ?? { kind: 'unknown', lastWords: '' });
      } else this.#orphaned = true;
      const gone = this.#death();
      throw new EngineError('vmm_failed', `${gone.message}: ${messageOf(error)}`, { cause: error });
    }
  }
}

/** A promise that has failed and that nobody need hear. */
function rejected(error: Error): Promise<never> {
  const promise = Promise.reject(error);
  promise.catch(() => {});
  return promise;
}

/** A refusal in the engine's words. */
export function asEngineError(error: unknown): unknown {
  if (!(error instanceof ShimRefusal)) return error;
  const fault = hostFault(error);
  if (fault) return fault;
  const code =
    error.errno === 'ETIMEDOUT' ? 'timeout' : error.errno === 'EINVAL' ? 'engine_error' : 'vmm_failed';
  return new EngineError(code, error.message, { details: { errno: error.errno }, cause: error });
}
