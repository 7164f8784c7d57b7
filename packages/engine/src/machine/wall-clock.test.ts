import { describe, expect, it } from 'vitest';
import type { AgentSession } from '../agent/index.js';
import { setWallClock, WallClock } from './wall-clock.js';

/** An agent that notes what times it is told. */
function agent(setTime: (told: bigint[]) => Promise<void> = async () => undefined) {
  const told: bigint[] = [];
  const session = {
    setTime: async (ns: bigint) => {
      told.push(ns);
      await setTime(told);
    },
  } as unknown as AgentSession;
  return { told, session };
}

describe('the wall clock of a guest that is branched', () => {
  it('is set when pauses have added up to what may be noticed, not before', async () => {
    const { told, session } = agent();
    const clock = new WallClock(async () => session);
    for (const ms of [9, 9]) await clock.missed(ms);
    expect(told).toHaveLength(0);
    await clock.missed(9);
    expect(told).toHaveLength(1);
    expect(Math.abs(Number(told[0]! / 1_000_000n) - Date.now())).toBeLessThan(1000);
    await clock.missed(19);
    expect(told).toHaveLength(1);
  });

  it('that could not be set is set after the next pause', async () => {
    let broken = true;
    const { told, session } = agent(async () => {
      if (broken) throw new Error('gone');
    });
    const clock = new WallClock(async () => session);
    await expect(clock.missed(30)).rejects.toThrow('gone');
    broken = false;
    await clock.missed(1);
    expect(told).toHaveLength(2);
  });

  it('is set again where the time was old when it arrived', async () => {
    const { told, session } = agent(async ({ length }) => {
      if (length === 1) await new Promise((resolve) => setTimeout(resolve, 60));
    });
    await setWallClock(session, 1000, new AbortController().signal);
    expect(told).toHaveLength(2);
    await setWallClock(session, 5, new AbortController().signal);
    expect(told).toHaveLength(2);
  });
});
