import { frameTypes, SYNC_REPLY_MAGIC_HEX } from '@forkd/wire';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { AgentError } from './errors.js';
import {
  encodeData,
  encodeFrame,
  encodeOffsets,
  encodeRequest,
  type Frame,
  FrameParser,
  SYNC_MAGIC,
} from './frames.js';

const nonce = Buffer.alloc(16, 7);
const session = Buffer.alloc(16, 9);

function reply(to = nonce): Buffer {
  const bytes = Buffer.alloc(64);
  Buffer.from(SYNC_REPLY_MAGIC_HEX, 'hex').copy(bytes);
  bytes.writeUInt16LE(1, 16);
  to.copy(bytes, 24);
  session.copy(bytes, 40);
  return bytes;
}

/** Feeds bytes in pieces of the given sizes, again and again. */
function parse(bytes: Buffer, sizes: readonly number[]): { frames: Frame[]; replies: number } {
  const frames: Frame[] = [];
  let replies = 0;
  const parser = new FrameParser(
    nonce,
    () => replies++,
    (frame) => frames.push({ ...frame, payload: Buffer.from(frame.payload) }),
  );
  for (let at = 0, turn = 0; at < bytes.length; turn++) {
    const size = sizes[turn % sizes.length] ?? bytes.length;
    parser.push(Buffer.from(bytes.subarray(at, at + size)));
    at += size;
  }
  return { frames, replies };
}

const pieces = fc.array(fc.integer({ min: 1, max: 70 }), { minLength: 1, maxLength: 10 });
const guestFrame = fc.oneof(
  fc
    .tuple(
      fc.integer({ min: 1, max: 2 }),
      fc.integer({ min: 1, max: 9 }),
      fc.uint8Array({ minLength: 1, maxLength: 400 }),
    )
    .map(([channel, id, bytes]) => encodeData(id, channel, 5, Buffer.from(bytes), 0, bytes.length)),
  fc.nat(2 ** 40).map((offset) => encodeOffsets(frameTypes.EOF, 1, 3, offset)),
  fc.nat(2 ** 40).map((offset) => encodeOffsets(frameTypes.ACK, 0, 3, offset, offset + 10)),
);

describe('frame parser', () => {
  it('gives the same frames however the bytes are cut, after whatever came before the reply', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.array(guestFrame), pieces, (junk, sent, sizes) => {
        const stream = Buffer.concat([junk, reply(Buffer.alloc(16, 1)), junk, reply(), ...sent]);
        const { frames, replies } = parse(stream, sizes);
        expect(replies).toBe(1);
        const again = frames.map((f) => encodeFrame(f.type, f.sub, f.id, f.payload));
        expect(Buffer.concat(again).equals(Buffer.concat(sent))).toBe(true);
      }),
    );
  });

  it('is not misled by the beginnings of a reply', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 63 })), pieces, (cuts, sizes) => {
        const halves = cuts.map((cut) => reply().subarray(0, Math.min(cut, 23)));
        expect(parse(Buffer.concat([...halves, reply()]), sizes).replies).toBe(1);
      }),
    );
  });

  it('refuses what no agent sends', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 16, maxLength: 300 }), (bytes) => {
        try {
          parse(Buffer.concat([reply(), bytes]), [bytes.length]);
        } catch (error) {
          expect((error as AgentError).code).toBe('protocol');
        }
      }),
    );
    const header = (change: (frame: Buffer) => void) => {
      const frame = encodeOffsets(frameTypes.EOF, 1, 1, 0);
      change(frame);
      return () => parse(Buffer.concat([reply(), frame]), [1000]);
    };
    expect(header((f) => f.writeUInt32LE(2 ** 31, 8))).toThrow(AgentError);
    expect(header((f) => f.writeUInt8(frameTypes.REQ, 2))).toThrow('frame of type 1');
    expect(header((f) => f.writeUInt8(3, 3))).toThrow('channel 3');
    expect(header((f) => f.writeUInt32LE(0, 4))).toThrow('id 0');
    expect(header((f) => f.writeUInt32LE(1, 12))).toThrow('reserved');
  });
});

describe('encoders', () => {
  const withMagic = fc
    .array(
      fc.oneof(
        fc.uint8Array({ maxLength: 40 }),
        fc.constant(SYNC_MAGIC),
        fc.constant(SYNC_MAGIC.subarray(0, 11)),
      ),
    )
    .map((parts) => Buffer.concat(parts))
    .filter((bytes) => bytes.length > 0);

  it('never let the magic of SYNC through, and lose nothing', () => {
    fc.assert(
      fc.property(withMagic, fc.integer({ min: 1, max: 100 }), (bytes, most) => {
        const sent: Buffer[] = [];
        const carried: Buffer[] = [];
        for (let at = 0; at < bytes.length; ) {
          const frame = encodeData(1, 0, at, bytes, at, most);
          expect(frame.length).toBeGreaterThan(24);
          sent.push(frame);
          carried.push(frame.subarray(24));
          at += frame.length - 24;
        }
        expect(Buffer.concat(carried).equals(bytes)).toBe(true);
        expect(Buffer.concat(sent).includes(SYNC_MAGIC)).toBe(false);
        const request = encodeRequest(1, bytes);
        expect(Buffer.concat(request.map((f) => f.subarray(16))).equals(bytes)).toBe(true);
        expect(Buffer.concat(request).includes(SYNC_MAGIC)).toBe(false);
        expect(request.map((f) => f[3])).toEqual(request.map((_, i) => (i < request.length - 1 ? 1 : 0)));
      }),
    );
  });

  it('keep frames within their size', () => {
    const big = Buffer.alloc(100_000, 1);
    expect(encodeData(1, 0, 0, big, 0, big.length).length).toBe(16 + 16384);
    for (const frame of encodeRequest(1, big)) expect(frame.length).toBeLessThanOrEqual(16 + 16384);
  });
});
