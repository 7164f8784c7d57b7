/** Bodies of requests that are content: what becomes of one that nobody wants to the end. */
import { PassThrough, type Readable } from 'node:stream';

/** What is still taken of a body after its request has failed: more bytes, or longer, and its sender is cut off. */
const lingerBytes = 16 * 1024 * 1024;
const lingerMs = 5000;

/**
 * A body as a stream that may be destroyed: that leaves the connection alone, which the answer has to go out on.
 *
 * @example write(contentOf(request.raw)).catch((error) => { drain(request.raw); throw error; })
 */
export function contentOf(body: Readable): Readable {
  const content = new PassThrough();
  content.on('error', () => undefined);
  body.on('error', (error) => content.destroy(error));
  body.once('close', () => {
    if (!body.readableEnded) content.destroy(new Error('the body broke off'));
  });
  return body.pipe(content);
}

/** Takes the rest of a body and drops it. A connection closed upon its sender would take the answer with it. */
export function drain(body: Readable): void {
  if (body.destroyed || body.readableEnded) return;
  const deadline = setTimeout(() => body.destroy(), lingerMs).unref();
  let left = lingerBytes;
  body.on('data', (chunk: Buffer) => {
    left -= chunk.length;
    if (left < 0) body.destroy();
  });
  body.on('error', () => undefined).once('close', () => clearTimeout(deadline));
  body.once('end', () => clearTimeout(deadline));
  body.resume();
}
