import type { Sandbox } from '@forkd/sdk';
import { describe, expect, it } from 'vitest';
import { fork } from '../sandbox/support.js';
import { dropAllOf } from './support.js';

/** What clocks show at one instant, ms. */
interface Clocks {
  host: number;
  /** The guest's monotonic clock, and how far its wall clock is from the host's. */
  guest: number;
  wallError: number;
  /** By how much the instants may differ. */
  doubt: number;
}

/** Host's and guest's clocks, to the nanosecond as the guest's kernel lists them; the best of several looks. */
async function look(box: Sandbox): Promise<Clocks> {
  let best: Clocks | undefined;
  for (let round = 0; round < 12; round++) {
    const began = performance.now();
    const wallBegan = Date.now();
    const text = (await box.files.read('/proc/timer_list')).toString('latin1');
    const trip = performance.now() - began;
    const now = Number(/^now at (\d+) nsecs/m.exec(text)?.[1]) / 1e6;
    const offset = Number(/ktime_get_real\s+\.offset:\s+(\d+) nsecs/.exec(text)?.[1]) / 1e6;
    const [host, doubt] = [began + trip / 2, trip / 2];
    if (best === undefined || doubt < best.doubt)
      best = { host, doubt, guest: now, wallError: now + offset - (wallBegan + trip / 2) };
  }
  return best!;
}

/** Branches that are taken: pauses that are added up show an error that each of them has. */
const rounds = 12;

describe('the pause of a branch', () => {
  it('is as long as the guest has stood still; its clocks go on from there, and its wall clock is right', async () => {
    await using children = await fork();
    const { box } = children;
    const before = await look(box);
    const pauses: number[] = [];
    let last = before.guest;
    for (let round = 0; round < rounds; round++) {
      const { pause_ms = 0 } = await box.branch();
      pauses.push(pause_ms);
      const { guest, wallError, doubt } = await look(box);
      expect(guest).toBeGreaterThan(last);
      last = guest;
      expect(Math.abs(wallError) - doubt, `wall clock after ${round + 1} branches`).toBeLessThan(100);
    }
    const after = await look(box);
    expect(Math.min(...pauses)).toBeGreaterThan(0);
    expect(Math.max(...pauses)).toBeLessThan(2000);
    const paused = pauses.reduce((sum, ms) => sum + ms, 0);
    const lost = after.host - before.host - (after.guest - before.guest);
    // Half a round trip at both ends, and half a millisecond for each pause.
    const doubt = before.doubt + after.doubt + rounds / 2;
    expect(Math.abs(lost - paused), `lost ${lost} ms, told ${paused} ms`).toBeLessThan(doubt);
    await children[Symbol.asyncDispose]();
    await dropAllOf(box.id);
  });
});
