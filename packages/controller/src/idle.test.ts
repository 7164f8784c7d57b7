import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { IdleTimer } from './idle.js';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

describe('an idle timer', () => {
  const make = (secs: number, busy = () => false) => {
    const onIdle = vi.fn();
    return { onIdle, timer: new IdleTimer({ secs, busy, onIdle }) };
  };

  it('waits for the last request, and then its seconds', () => {
    const { onIdle, timer } = make(10);
    const first = timer.enter();
    const second = timer.enter();
    first();
    first();
    vi.advanceTimersByTime(60_000);
    expect(onIdle).not.toHaveBeenCalled();
    second();
    vi.advanceTimersByTime(9_999);
    timer.enter()();
    vi.advanceTimersByTime(9_999);
    expect(onIdle).not.toHaveBeenCalled();
    vi.advanceTimersByTime(1);
    expect(onIdle).toHaveBeenCalledOnce();
  });

  it('does not end what something else needs', () => {
    let sandboxes = 1;
    const { onIdle, timer } = make(10, () => sandboxes > 0);
    timer.touch();
    vi.advanceTimersByTime(60_000);
    expect(onIdle).not.toHaveBeenCalled();
    sandboxes = 0;
    timer.touch();
    vi.advanceTimersByTime(10_000);
    expect(onIdle).toHaveBeenCalledOnce();
  });

  it('of 0 seconds never fires, nor a closed one; a huge one fires not at once', () => {
    const never = make(0);
    never.timer.touch();
    const closed = make(1);
    closed.timer.touch();
    closed.timer.close();
    const huge = make(999_999_999);
    huge.timer.touch();
    vi.advanceTimersByTime(60_000);
    for (const { onIdle } of [never, closed, huge]) expect(onIdle).not.toHaveBeenCalled();
  });
});
