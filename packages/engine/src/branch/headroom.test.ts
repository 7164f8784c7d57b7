import { describe, expect, it } from 'vitest';
import { heldMemory, holdMemory, usableMemory } from '../host/memory.js';
import { reserveHeadroom } from './headroom.js';

const MiB = 2 ** 20;

describe('the room for a clone', () => {
  it('is reserved until it is given back', async () => {
    const look = async () => ({ group: null, host: 100 * MiB });
    const before = heldMemory();
    const { held } = await reserveHeadroom(1, 60 * MiB, look);
    expect(heldMemory() - before).toBe(60 * MiB);
    held?.[Symbol.dispose]();
    held?.[Symbol.dispose]();
    expect(heldMemory()).toBe(before);
  });

  it.each([
    [{ group: 59 * MiB, host: 100 * MiB }, 'the memory limit of its control group leaves 59 MiB'],
    [{ group: null, host: 2 * MiB }, 'the host can spare 2 MiB'],
  ])('is refused with the numbers where it is not there', async (left, words) => {
    const before = heldMemory();
    const { held, lacking } = await reserveHeadroom(1, 60 * MiB, async () => left);
    expect({ held, lacking }).toEqual({
      held: null,
      lacking: `a clone of its memory may cost 60 MiB more, and ${words}`,
    });
    expect(heldMemory()).toBe(before);
  });

  it('is looked for on the host, and what is reserved is not given twice', async () => {
    const all = holdMemory(await usableMemory());
    expect((await reserveHeadroom(process.pid, 256 * MiB)).lacking).toMatch(/^a clone .* 256 MiB more, and /);
    all[Symbol.dispose]();
    const { held } = await reserveHeadroom(process.pid, 0);
    expect(held).not.toBeNull();
    held?.[Symbol.dispose]();
  });
});
