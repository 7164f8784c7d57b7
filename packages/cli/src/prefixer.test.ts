import { PassThrough } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { Prefixer } from './prefixer.js';

function make(count: number) {
  const streams = { stdout: new PassThrough(), stderr: new PassThrough() };
  const prefixer = new Prefixer(count, streams.stdout, streams.stderr);
  const text = (name: 'stdout' | 'stderr') => String(streams[name].read() ?? '');
  return { prefixer, text };
}

describe('a prefixer', () => {
  it('joins lines that come in pieces, cut anywhere, and keeps commands and channels apart', () => {
    const { prefixer, text } = make(11);
    const euro = Buffer.from('a€\n');
    prefixer.write(0, 'stdout', euro.subarray(0, 2));
    prefixer.write(10, 'stdout', Buffer.from('x\ny'));
    prefixer.write(0, 'stderr', Buffer.from('e\n'));
    prefixer.write(0, 'stdout', euro.subarray(2));
    expect(text('stdout')).toBe('10 | x\n 0 | a€\n');
    expect(text('stderr')).toBe(' 0 | e\n');
    prefixer.end(10);
    prefixer.end(10);
    expect(text('stdout')).toBe('10 | y\n');
  });

  it('cuts a line that does not end', () => {
    const { prefixer, text } = make(1);
    prefixer.write(0, 'stdout', Buffer.alloc(8192 * 2 + 1, 'z'));
    expect(text('stdout')).toBe(`0 | ${'z'.repeat(8192)}\n0 | ${'z'.repeat(8192)}\n`);
    prefixer.end(0);
    expect(text('stdout')).toBe('0 | z\n');
  });
});
