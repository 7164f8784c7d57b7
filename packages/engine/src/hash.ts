import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';

/** SHA-256 of a file, as 64 hex digits. */
export async function sha256File(path: string, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(
    createReadStream(path, { highWaterMark: 1024 * 1024 }),
    hash,
    ...(signal ? [{ signal }] : []),
  );
  return hash.digest('hex');
}

/** SHA-256 of bytes or text, as 64 hex digits. */
export function sha256(data: Buffer | string): string {
  return createHash('sha256').update(data).digest('hex');
}
