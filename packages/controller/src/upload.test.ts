import { PassThrough } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { contentOf, drain } from './upload.js';

it('content is the body, and its end', async () => {
  const body = new PassThrough();
  body.end(Buffer.from('all of it'));
  expect(Buffer.concat(await contentOf(body).toArray()).toString()).toBe('all of it');
});

it('content that is given up leaves the body to be drained', async () => {
  const body = new PassThrough();
  const content = contentOf(body);
  body.write('some');
  for await (const chunk of content) {
    expect(String(chunk)).toBe('some');
    break;
  }
  expect(content.destroyed).toBe(true);
  expect(body.destroyed).toBe(false);
  drain(body);
  const ended = new Promise((resolve) => body.on('end', resolve));
  body.end(Buffer.alloc(1_000_000));
  await ended;
});

it('content ends as the body fails', async () => {
  const body = new PassThrough();
  const content = contentOf(body);
  body.destroy(new Error('the client is gone'));
  await expect(content.toArray()).rejects.toThrow('the client is gone');
});

it('a body that does not end is cut off', async () => {
  const body = new PassThrough();
  drain(body);
  for (let i = 0; i < 20 && !body.destroyed; i += 1) {
    body.write(Buffer.alloc(1024 * 1024));
    await setImmediate();
  }
  expect(body.destroyed).toBe(true);
});
