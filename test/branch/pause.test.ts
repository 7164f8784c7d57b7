import { describe, expect, it } from 'vitest';
import { fork } from '../sandbox/support.js';
import { dropAllOf } from './support.js';

/** Branches that are taken: the guest's clock is read in steps of 10 ms, so several pauses are added up. */
const rounds = 8;

describe('the pause of a branch', () => {
  it('is as long as the guest has stood still', async () => {
    await using children = await fork();
    const { box } = children;
    /** Host's and guest's clock at one instant, ms; the best of several looks. */
    const clocks = async () => {
      let best = { host: 0, guest: 0, trip: Number.POSITIVE_INFINITY };
      for (let look = 0; look < 12; look++) {
        const began = performance.now();
        const text = (await box.files.read('/proc/uptime')).toString('utf8');
        const trip = performance.now() - began;
        if (trip < best.trip)
          best = { host: began + trip / 2, guest: Number(text.split(' ')[0]) * 1000, trip };
      }
      return best;
    };
    const before = await clocks();
    let paused = 0;
    let longest = 0;
    for (let round = 0; round < rounds; round++) {
      const { pause_ms = 0 } = await box.branch();
      expect(pause_ms).toBeGreaterThan(0);
      paused += pause_ms;
      longest = Math.max(longest, pause_ms);
    }
    const after = await clocks();
    const lost = after.host - before.host - (after.guest - before.guest);
    // Steps of the guest's clock, and half a round trip at both ends.
    const doubt = 20 + (before.trip + after.trip) / 2;
    expect(Math.abs(lost - paused), `lost ${lost} ms, told ${paused} ms`).toBeLessThan(doubt);
    expect(longest).toBeLessThan(2000);
    await children[Symbol.asyncDispose]();
    await dropAllOf(box.id);
  });
});
