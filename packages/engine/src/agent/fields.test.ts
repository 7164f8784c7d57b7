import { fields as tags } from '@forkd/wire';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { AgentError } from './errors.js';
import { FieldReader, FieldWriter } from './fields.js';

describe('fields', () => {
  it('are read as they were written, in order', () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 300 })), (values) => {
        const writer = new FieldWriter();
        for (const value of values) writer.bytes('arg', value);
        const read = new FieldReader(writer.finish());
        expect(read.all('arg').map((b) => [...b])).toEqual(values.map((v) => [...v]));
      }),
    );
  });

  it('keep 32 and 64 bits whole', () => {
    fc.assert(
      fc.property(fc.nat(0xffff_ffff), fc.bigInt(0n, 2n ** 64n - 1n), (small, large) => {
        const read = new FieldReader(new FieldWriter().u32('mode', small).u64('mtime', large).finish());
        expect(read.u32('mode')).toBe(small);
        expect(read.u64('mtime')).toBe(large);
      }),
    );
  });

  it('of any bytes are either read or refused as a breach of the protocol', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        try {
          new FieldReader(Buffer.from(bytes));
        } catch (error) {
          expect(error).toBeInstanceOf(AgentError);
          expect((error as AgentError).code).toBe('protocol');
        }
      }),
    );
  });

  it('are refused when a length passes the end, a size is wrong, or a tag is unknown', () => {
    const field = (tag: number, length: number, bytes: number) => {
      const buffer = Buffer.alloc(8 + bytes);
      buffer.writeUInt16LE(tag, 0);
      buffer.writeUInt32LE(length, 4);
      return buffer;
    };
    expect(() => new FieldReader(field(tags.name, 5, 4))).toThrow('passes the end');
    expect(() => new FieldReader(field(tags.name, 0xffff_ffff, 4))).toThrow('passes the end');
    expect(() => new FieldReader(field(tags.handle, 3, 3))).toThrow('3 bytes, not 4');
    expect(() => new FieldReader(field(9999, 0, 0))).toThrow('unknown field 9999');
    expect(() => new FieldReader(field(tags.handle, 4, 4)).u32('pid')).toThrow('pid is missing');
  });

  it('name the value that cannot be sent', () => {
    expect(() => new FieldWriter().u32('mode', -1)).toThrow('got -1');
    expect(() => new FieldWriter().u32('mode', 1.5)).toThrow('got 1.5');
    expect(() => new FieldWriter().u64('offset', 2n ** 64n)).toThrow('got 18446744073709551616');
    expect(() => new FieldWriter().text('path', 'a\0b')).toThrow('NUL');
  });
});
