import { describe, expect, it } from 'vitest';
import { escapeWatcher } from './terminal.js';

describe('the escape key', () => {
  function watcher() {
    let time = 0;
    let left = 0;
    const watch = escapeWatcher(
      () => {
        left += 1;
      },
      () => time,
    );
    return {
      type: (text: string) => watch(Buffer.from(text)),
      wait: (ms: number) => {
        time += ms;
      },
      left: () => left,
    };
  }

  it('leaves at the third time within a second', () => {
    const keys = watcher();
    keys.type('\u001d');
    keys.wait(400);
    keys.type('\u001d');
    expect(keys.left()).toBe(0);
    keys.wait(400);
    keys.type('\u001d');
    expect(keys.left()).toBe(1);
  });

  it('does nothing when pressed slowly, or with other keys in between', () => {
    const keys = watcher();
    for (let i = 0; i < 5; i += 1) {
      keys.type('\u001d');
      keys.wait(600);
    }
    keys.wait(1000);
    keys.type('\u001d\u001dx\u001d\u001d');
    expect(keys.left()).toBe(0);
  });
});
