import { describe, expect, it } from 'vitest';
import { crc64 } from './crc64.js';

describe('crc64', () => {
  it('is the one that is published for "123456789" under this polynomial', () => {
    expect(crc64(Buffer.from('123456789'))).toBe(0xe9c6d914c4b8d9can);
  });

  it('is 0 for bytes that end in their own checksum, and for no others', () => {
    const bytes = Buffer.alloc(1032);
    for (let at = 0; at < 1024; at++) bytes[at] = (at * 7) & 0xff;
    bytes.writeBigUInt64LE(crc64(bytes.subarray(0, 1024)), 1024);
    expect(crc64(bytes)).toBe(0n);
    bytes[512]! ^= 1;
    expect(crc64(bytes)).not.toBe(0n);
  });
});
