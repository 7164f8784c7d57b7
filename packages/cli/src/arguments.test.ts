import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { collectEnv, collectPairs, seconds, templateSource, wholeNumber } from './arguments.js';

describe('--env', () => {
  it('takes values with equal signs, empty ones, and those of our environment', () => {
    process.env.FORKD_TEST_VALUE = 'here';
    expect(collectEnv('A=b=c', { X: '1' })).toEqual({ X: '1', A: 'b=c' });
    expect(collectEnv('A=')).toEqual({ A: '' });
    expect(collectEnv('FORKD_TEST_VALUE')).toEqual({ FORKD_TEST_VALUE: 'here' });
  });
  it('names what is wrong', () => {
    expect(() => collectEnv('=x')).toThrow('"=x" has no name');
    expect(() => collectEnv('FORKD_TEST_NOT_SET')).toThrow('FORKD_TEST_NOT_SET: there is no such variable');
    expect(() => collectPairs('x')).toThrow('"x" is not NAME=VALUE');
  });
});

describe('numbers', () => {
  it('are whole, and within their range', () => {
    const parse = wholeNumber('-n', 1, 1000);
    expect([parse('1'), parse('1000')]).toEqual([1, 1000]);
    for (const bad of ['0', '-1', '1001', '3.5', '1e3', '', ' 3', '0x3', '"3"']) {
      expect(() => parse(bad)).toThrow('is not a whole number from 1 to 1000');
    }
  });
  it('of seconds have units', () => {
    const parse = seconds('--timeout');
    expect(['10', '1.5s', '500ms', '2m', '1h'].map(parse)).toEqual([10, 1.5, 0.5, 120, 3600]);
    for (const bad of ['0', '-1', 'x', '1d', '', 'Infinity', '99999999']) {
      expect(() => parse(bad)).toThrow('is not a time');
    }
  });
});

describe('templates', () => {
  it('are names, unless they look like a path', () => {
    expect(templateSource('python')).toBe('python');
    expect(() => templateSource('./none.yaml')).toThrow(
      /cannot read the template file \/.*none.yaml: ENOENT/,
    );
    expect(() => templateSource('none.yml')).toThrow('ENOENT');
    const file = fileURLToPath(new URL('../../../templates/busybox.yaml', import.meta.url));
    expect(templateSource(file)).toMatchObject({ name: 'busybox', dir: dirname(file) });
  });
});
