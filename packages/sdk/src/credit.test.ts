import { setImmediate } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { CreditReader } from './credit.js';

const reader = () => {
  const given: number[] = [];
  return { given, stream: new CreditReader((bytes) => given.push(bytes)) };
};

it('a gap is told in its place, to who began to listen after it came', async () => {
  const { stream } = reader();
  stream.give(Buffer.from('a'));
  stream.skip({ from: 1, to: 9 });
  stream.give(Buffer.from('b'));
  stream.end();
  await setImmediate();
  const seen: unknown[] = [];
  stream.on('gap', (gap) => seen.push(gap));
  for await (const chunk of stream) seen.push(String(chunk));
  expect(seen).toEqual(['a', { from: 1, to: 9 }, 'b']);
});

it('a gap at the end is told, and nothing comes after the end', async () => {
  const { stream } = reader();
  const seen: unknown[] = [];
  stream.on('gap', (gap) => seen.push(gap)).on('data', (chunk) => seen.push(String(chunk)));
  await setImmediate();
  stream.give(Buffer.from('x'));
  stream.skip({ from: 1, to: 2 });
  stream.end();
  await new Promise((resolve) => stream.on('end', resolve));
  expect(seen).toEqual(['x', { from: 1, to: 2 }]);
});

it('credit is given back as bytes are taken, and at once when the reader has gone', async () => {
  const { stream, given } = reader();
  const chunk = Buffer.alloc(64 * 1024);
  stream.give(chunk);
  stream.give(chunk);
  await setImmediate();
  expect(given).toEqual([]);
  expect(stream.read()?.length).toBe(chunk.length);
  expect(given.length).toBeGreaterThan(0);
  stream.destroy();
  await setImmediate();
  stream.give(chunk);
  expect(given.reduce((sum, bytes) => sum + bytes, 0)).toBe(3 * chunk.length);
});
