import { describe, expect, it } from 'vitest';
import { baseName, joinPath, parsePlace } from './place.js';

describe('places of a copy', () => {
  it('are in a sandbox, here, or a stream', () => {
    expect(parsePlace('sb-1:/tmp/a:b')).toEqual({ kind: 'guest', sandbox: 'sb-1', path: '/tmp/a:b' });
    expect(parsePlace('./a:b')).toEqual({ kind: 'local', path: './a:b' });
    expect(parsePlace('-x')).toEqual({ kind: 'local', path: '-x' });
    expect(parsePlace('-')).toEqual({ kind: 'stream' });
  });
  it('must have a path', () => {
    expect(() => parsePlace('sb-1:')).toThrow('"sb-1:" has no path');
    expect(() => parsePlace('')).toThrow('empty path');
  });
  it('have names', () => {
    expect(['/a/b/', 'a', '/', '..', 'a/.'].map(baseName)).toEqual([
      'b',
      'a',
      undefined,
      undefined,
      undefined,
    ]);
    expect([joinPath('/', 'a'), joinPath('/x', 'a')]).toEqual(['/a', '/x/a']);
  });
});
