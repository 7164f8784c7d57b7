/**
 * Frames: a parser that takes the guest's bytes in pieces of any size, and encoders that never let SYNC's magic through.
 * No byte of the magic is 0 or `f`, so it can only lie inside a payload, never across a header.
 */
import {
  AGENT_PROTOCOL_VERSION,
  FRAME_HEADER_SIZE,
  frameTypes,
  MAX_FRAME_PAYLOAD,
  MAX_RESPONSE_BYTES,
  SYNC_MAGIC_HEX,
  SYNC_REPLY_MAGIC_HEX,
  SYNC_SIZE,
} from '@forkd/wire';
import { broken } from './fields.js';

export const SYNC_MAGIC = Buffer.from(SYNC_MAGIC_HEX, 'hex');
const REPLY_MAGIC = Buffer.from(SYNC_REPLY_MAGIC_HEX, 'hex');
/** Most bytes of a stream in one DATA frame. */
export const MAX_DATA = MAX_FRAME_PAYLOAD - 8;
const MAX_RESUMED = 8 + 16 * 1024;

export interface Frame {
  type: number;
  /** Channel, or flags. */
  sub: number;
  id: number;
  payload: Buffer;
}

export interface SyncReply {
  version: number;
  resumed: boolean;
  session: Buffer;
  bootCounter: bigint;
}

/** Payload sizes that the guest may send, per type: [least, most, highest sub]. */
const accepted = new Map<number, readonly [number, number, number]>([
  [frameTypes.RES, [8, MAX_RESPONSE_BYTES, 0]],
  [frameTypes.DATA, [9, MAX_FRAME_PAYLOAD, 2]],
  [frameTypes.ACK, [16, 16, 2]],
  [frameTypes.EOF, [8, 8, 2]],
  [frameTypes.GAP, [16, 16, 2]],
  [frameTypes.DONE, [8, MAX_RESPONSE_BYTES, 0]],
  [frameTypes.RESUMED, [8, MAX_RESUMED, 0]],
  [frameTypes.PING, [8, 8, 0]],
  [frameTypes.PONG, [8, 8, 0]],
]);

/** Types that belong to no request. */
const withoutId = new Set<number>([frameTypes.RESUMED, frameTypes.PING, frameTypes.PONG]);

/**
 * Takes bytes apart. It begins deaf: whatever arrives before the SYNC_REPLY that carries the expected nonce is somebody else's
 * conversation (a snapshot can be taken amid a frame) and is dropped. Holds at most one frame.
 */
export class FrameParser {
  #nonce: Buffer;
  #synced = false;
  #rest: Buffer | null = null;
  readonly #onReply: (reply: SyncReply) => void;
  readonly #onFrame: (frame: Frame) => void;

  constructor(nonce: Buffer, onReply: (reply: SyncReply) => void, onFrame: (frame: Frame) => void) {
    this.#nonce = nonce;
    this.#onReply = onReply;
    this.#onFrame = onFrame;
  }

  get synced(): boolean {
    return this.#synced;
  }

  /** Wait for the answer to another SYNC instead. Without effect once synced. */
  expect(nonce: Buffer): void {
    this.#nonce = nonce;
  }

  /** @throws AgentError `protocol` at a frame that no agent sends; the parser is of no use then. */
  push(chunk: Buffer): void {
    const data = this.#rest === null ? chunk : Buffer.concat([this.#rest, chunk]);
    this.#rest = null;
    let at = 0;
    if (!this.#synced) {
      const after = this.#findReply(data);
      if (after < 0) return;
      at = after;
    }
    while (data.length - at >= FRAME_HEADER_SIZE) {
      const length = checkHeader(data, at);
      const end = at + FRAME_HEADER_SIZE + length;
      if (end > data.length) break;
      const frame: Frame = {
        type: data[at + 2]!,
        sub: data[at + 3]!,
        id: data.readUInt32LE(at + 4),
        payload: data.subarray(at + FRAME_HEADER_SIZE, end),
      };
      at = end;
      this.#onFrame(frame);
    }
    if (at < data.length) this.#rest = data.subarray(at);
  }

  #findReply(data: Buffer): number {
    let at = 0;
    for (;;) {
      const found = data.indexOf(REPLY_MAGIC, at);
      if (found < 0) {
        // The magic may have begun in the last bytes.
        const keep = Math.max(at, data.length - (REPLY_MAGIC.length - 1));
        if (keep < data.length) this.#rest = Buffer.from(data.subarray(keep));
        return -1;
      }
      if (data.length - found < SYNC_SIZE) {
        this.#rest = Buffer.from(data.subarray(found));
        return -1;
      }
      if (this.#nonce.equals(data.subarray(found + 24, found + 40))) {
        this.#synced = true;
        this.#onReply({
          version: data.readUInt16LE(found + 16),
          resumed: (data.readUInt16LE(found + 18) & 1) !== 0,
          session: Buffer.from(data.subarray(found + 40, found + 56)),
          bootCounter: data.readBigUInt64LE(found + 56),
        });
        return found + SYNC_SIZE;
      }
      at = found + 1;
    }
  }
}

/** Checks the header at `at` and returns the payload's length. */
function checkHeader(data: Buffer, at: number): number {
  if (data[at] !== 0x66 || data[at + 1] !== 0x6b)
    throw broken(`no frame where one should begin (${data.toString('hex', at, at + 4)})`);
  const type = data[at + 2]!;
  const rule = accepted.get(type);
  if (!rule) throw broken(`frame of type ${type}`);
  const sub = data[at + 3]!;
  if (sub > rule[2]) throw broken(`frame of type ${type} for channel ${sub}`);
  const id = data.readUInt32LE(at + 4);
  if ((id === 0) !== withoutId.has(type)) throw broken(`frame of type ${type} with id ${id}`);
  const length = data.readUInt32LE(at + 8);
  if (length < rule[0] || length > rule[1]) throw broken(`frame of type ${type} with ${length} bytes`);
  if (data.readUInt32LE(at + 12) !== 0) throw broken('reserved bytes of a header are not zero');
  return length;
}

/** SYNC: 64 bytes, not framed. */
export function encodeSync(nonce: Buffer, session: Buffer): Buffer {
  const sync = Buffer.alloc(SYNC_SIZE);
  SYNC_MAGIC.copy(sync, 0);
  sync.writeUInt16LE(AGENT_PROTOCOL_VERSION, 16);
  nonce.copy(sync, 24);
  session.copy(sync, 40);
  return sync;
}

/** One frame whose payload is known to be free of the magic. */
export function encodeFrame(type: number, sub: number, id: number, payload?: Buffer): Buffer {
  const length = payload?.length ?? 0;
  const frame = Buffer.allocUnsafe(FRAME_HEADER_SIZE + length);
  writeHeader(frame, type, sub, id, length);
  payload?.copy(frame, FRAME_HEADER_SIZE);
  return frame;
}

/** EOF, ACK and GAP: one or two offsets. */
export function encodeOffsets(type: number, channel: number, id: number, ...offsets: number[]): Buffer {
  const frame = Buffer.allocUnsafe(FRAME_HEADER_SIZE + 8 * offsets.length);
  writeHeader(frame, type, channel, id, 8 * offsets.length);
  offsets.forEach((offset, index) => {
    writeOffset(frame, FRAME_HEADER_SIZE + 8 * index, offset);
  });
  return frame;
}

/** A whole request, as the fragments that carry it. */
export function encodeRequest(id: number, payload: Buffer): Buffer[] {
  const frames: Buffer[] = [];
  let at = 0;
  do {
    const end = pieceEnd(payload, at, MAX_FRAME_PAYLOAD);
    frames.push(encodeFrame(frameTypes.REQ, end < payload.length ? 1 : 0, id, payload.subarray(at, end)));
    at = end;
  } while (at < payload.length);
  return frames;
}

/**
 * The first DATA frame of `bytes` from `at` on, at most `most` bytes of them. Returns a copy: the caller may reuse its buffer.
 * The bytes carried are what follows the first 24.
 */
export function encodeData(
  id: number,
  channel: number,
  offset: number,
  bytes: Buffer,
  at: number,
  most: number,
): Buffer {
  const end = pieceEnd(bytes, at, Math.min(most, MAX_DATA));
  const frame = Buffer.allocUnsafe(FRAME_HEADER_SIZE + 8 + end - at);
  writeHeader(frame, frameTypes.DATA, channel, id, 8 + end - at);
  writeOffset(frame, FRAME_HEADER_SIZE, offset);
  bytes.copy(frame, FRAME_HEADER_SIZE + 8, at, end);
  return frame;
}

/** Where a payload that begins at `at` has to end: the magic inside is cut in half. */
function pieceEnd(bytes: Buffer, at: number, most: number): number {
  const end = Math.min(bytes.length, at + most);
  if (end - at < SYNC_MAGIC.length) return end;
  const magic = bytes.subarray(at, end).indexOf(SYNC_MAGIC);
  return magic < 0 ? end : at + magic + SYNC_MAGIC.length / 2;
}

function writeHeader(frame: Buffer, type: number, sub: number, id: number, length: number): void {
  frame[0] = 0x66;
  frame[1] = 0x6b;
  frame[2] = type;
  frame[3] = sub;
  frame.writeUInt32LE(id, 4);
  frame.writeUInt32LE(length, 8);
  frame.writeUInt32LE(0, 12);
}

function writeOffset(frame: Buffer, at: number, offset: number): void {
  frame.writeUInt32LE(offset % 0x1_0000_0000, at);
  frame.writeUInt32LE(Math.floor(offset / 0x1_0000_0000), at + 4);
}

/** An offset of the guest's. Streams beyond 2^53 bytes do not exist, so a number is enough. */
export function readOffset(payload: Buffer, at: number): number {
  const value = payload.readUInt32LE(at) + payload.readUInt32LE(at + 4) * 0x1_0000_0000;
  if (!Number.isSafeInteger(value)) throw broken(`offset ${payload.readBigUInt64LE(at)}`);
  return value;
}
