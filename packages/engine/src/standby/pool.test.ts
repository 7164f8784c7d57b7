import { afterEach, describe, expect, it, vi } from 'vitest';
import { Pool } from './pool.js';

class Thing implements AsyncDisposable {
  gone = false;
  readonly number: number;
  constructor(number: number) {
    this.number = number;
  }
  async [Symbol.asyncDispose](): Promise<void> {
    this.gone = true;
  }
}

/** A pool whose things are made when the test says so. */
function poolOf() {
  const made: Thing[] = [];
  const waiting: { finish: () => void; fail: (error: Error) => void }[] = [];
  const pool = new Pool(async () => {
    await new Promise<void>((resolve, reject) => waiting.push({ finish: resolve, fail: reject }));
    const thing = new Thing(made.length);
    made.push(thing);
    return thing;
  });
  const fill = async (n: number): Promise<void> => {
    for (let index = 0; index < n; index++) {
      const filled = pool.fill();
      waiting.shift()!.finish();
      await filled;
    }
  };
  return { pool, made, waiting, fill };
}

afterEach(() => vi.useRealTimers());

describe('a pool', () => {
  it('gives what has waited longest, and nothing when it is empty', async () => {
    const { pool, fill } = poolOf();
    await fill(2);
    expect(pool.ready).toBe(2);
    expect([pool.take()?.number, pool.take()?.number, pool.take()]).toEqual([0, 1, undefined]);
  });

  it('makes one thing at a time, for all who ask meanwhile', async () => {
    const { pool, waiting } = poolOf();
    const filled = [pool.fill(), pool.fill()];
    expect(waiting).toHaveLength(1);
    waiting[0]!.finish();
    await Promise.all(filled);
    expect(pool.ready).toBe(1);
  });

  it('tells who filled it what failed, and can be filled again', async () => {
    const { pool, waiting, fill } = poolOf();
    const filled = pool.fill();
    waiting.shift()!.fail(new Error('no memory'));
    await expect(filled).rejects.toThrow('no memory');
    expect(pool.ready).toBe(0);
    await fill(1);
    expect(pool.ready).toBe(1);
  });

  it('disposes of what has waited too long, and of nothing else', async () => {
    vi.useFakeTimers({ toFake: ['performance'] });
    const { pool, made, fill } = poolOf();
    await fill(1);
    vi.advanceTimersByTime(20);
    await fill(1);
    await pool.expire(15);
    expect(made.map(({ gone }) => gone)).toEqual([true, false]);
    expect(pool.take()).toBe(made[1]);
  });

  it('disposes at its end of all that nobody has taken, also of what is being made', async () => {
    const { pool, made, waiting, fill } = poolOf();
    await fill(2);
    const taken = pool.take();
    const filled = pool.fill();
    const closed = pool.close();
    waiting.shift()!.finish();
    await Promise.all([filled, closed]);
    expect(made.map((thing) => thing.gone)).toEqual([false, true, true]);
    expect(taken?.gone).toBe(false);
    await pool.fill();
    expect(pool.ready).toBe(0);
    expect(waiting).toHaveLength(0);
  });
});
