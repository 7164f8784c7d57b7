import type { AgentSession } from '../agent/index.js';
import { deadline, orAborted } from '../deadline.js';

/** How late a wall clock may be set, ms, and how often that is tried: on a busy host a time that was sent is old when it arrives. */
const LATE_MS = 30;
const ATTEMPTS = 5;

/** Pauses that a wall clock may have missed before it is set again, ms. With {@link LATE_MS} a guest is never 100 ms behind for it. */
const MISSED_MS = 20;

/** How long that may take, ms; a guest that does not answer keeps the clock that it has. */
const SET_MS = 2000;

export function wallClockNs(): bigint {
  return BigInt(Date.now()) * 1_000_000n;
}

/**
 * Sets a guest's wall clock until it is right within {@link LATE_MS}.
 *
 * @param late how old the time is that it was told last, ms
 */
export async function setWallClock(session: AgentSession, late: number, signal: AbortSignal): Promise<void> {
  for (let attempt = 0; late > LATE_MS && attempt < ATTEMPTS; attempt++) {
    signal.throwIfAborted();
    const asked = performance.now();
    await orAborted(session.setTime(wallClockNs()), signal);
    late = performance.now() - asked;
  }
}

/**
 * Keeps the wall clock of a guest right over the pauses of its branches. All of its clocks stand still in a pause: what is told to go on for a time
 * goes on for that time, and only the time of day is behind afterwards, a little more after each.
 */
export class WallClock {
  readonly #session: () => Promise<AgentSession>;
  #missedMs = 0;

  constructor(session: () => Promise<AgentSession>) {
    this.#session = session;
  }

  /**
   * A pause is over. Sets the clock where it may have come to be noticed.
   *
   * @param pauseMs how long it was, ms
   * @throws EngineError timeout, or what the agent says; the clock is set after the next pause then
   */
  async missed(pauseMs: number): Promise<void> {
    this.#missedMs += pauseMs;
    if (this.#missedMs < MISSED_MS) return;
    const missed = this.#missedMs;
    using limit = deadline('the setting of the wall clock', SET_MS);
    const session = await orAborted(this.#session(), limit.signal);
    await setWallClock(session, Number.POSITIVE_INFINITY, limit.signal);
    this.#missedMs -= missed;
  }
}
