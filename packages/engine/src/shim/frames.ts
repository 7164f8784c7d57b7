/** Frames of the shim protocol as bytes; `packages/wire/src/shim.ts` draws them. */
import { SHIM_HEADER_SIZE, SHIM_MAX_PAYLOAD, SHIM_PROTOCOL_VERSION } from '@forkd/wire';

export interface Frame {
  type: number;
  id: number;
  /** 0, or an errno. */
  status: number;
  payload: Buffer;
}

/** One frame, ready to send. */
export function encodeFrame(type: number, id: number, payload: Buffer): Buffer {
  if (payload.length > SHIM_MAX_PAYLOAD)
    throw new RangeError(`a request of ${payload.length} bytes; a shim takes ${SHIM_MAX_PAYLOAD}`);
  const header = Buffer.alloc(SHIM_HEADER_SIZE);
  header.write('fs', 'latin1');
  header[2] = SHIM_PROTOCOL_VERSION;
  header[3] = type;
  header.writeUInt32LE(id, 4);
  header.writeUInt32LE(payload.length, 8);
  return Buffer.concat([header, payload]);
}

/** Cuts a stream of bytes into frames. */
export class FrameReader {
  #kept: Buffer = Buffer.alloc(0);

  /**
   * @returns the frames that are complete with this chunk
   * @throws Error when the bytes are not of this protocol
   */
  push(chunk: Buffer): Frame[] {
    this.#kept = this.#kept.length === 0 ? chunk : Buffer.concat([this.#kept, chunk]);
    const frames: Frame[] = [];
    while (this.#kept.length >= SHIM_HEADER_SIZE) {
      const length = this.#kept.readUInt32LE(8);
      const ours = this.#kept.toString('latin1', 0, 2) === 'fs' && this.#kept[2] === SHIM_PROTOCOL_VERSION;
      if (!ours || length > SHIM_MAX_PAYLOAD)
        throw new Error(`the shim speaks another protocol than version ${SHIM_PROTOCOL_VERSION}`);
      const end = SHIM_HEADER_SIZE + length;
      if (this.#kept.length < end) break;
      frames.push({
        type: this.#kept[3]!,
        id: this.#kept.readUInt32LE(4),
        status: this.#kept.readUInt32LE(12),
        payload: this.#kept.subarray(SHIM_HEADER_SIZE, end),
      });
      this.#kept = this.#kept.subarray(end);
    }
    return frames;
  }
}

/** Builds a payload field by field. */
export class PayloadWriter {
  readonly #parts: Buffer[] = [];

  u32(...values: number[]): this {
    const bytes = Buffer.alloc(4 * values.length);
    for (const [index, value] of values.entries()) bytes.writeUInt32LE(value, 4 * index);
    this.#parts.push(bytes);
    return this;
  }

  u64(...values: bigint[]): this {
    const bytes = Buffer.alloc(8 * values.length);
    for (const [index, value] of values.entries()) bytes.writeBigUInt64LE(value, 8 * index);
    this.#parts.push(bytes);
    return this;
  }

  text(value: string): this {
    const bytes = Buffer.from(value);
    this.u32(bytes.length);
    this.#parts.push(bytes);
    return this;
  }

  bytes(value: Buffer): this {
    this.#parts.push(value);
    return this;
  }

  done(): Buffer {
    return Buffer.concat(this.#parts);
  }
}

/** Reads a payload field by field; RangeError past its end. */
export class PayloadReader {
  readonly #payload: Buffer;
  #at = 0;

  constructor(payload: Buffer) {
    this.#payload = payload;
  }

  u32(): number {
    this.#at += 4;
    return this.#payload.readUInt32LE(this.#at - 4);
  }

  u64(): bigint {
    this.#at += 8;
    return this.#payload.readBigUInt64LE(this.#at - 8);
  }

  text(): string {
    const length = this.u32();
    if (this.#at + length > this.#payload.length) throw new RangeError('a text ends past its frame');
    this.#at += length;
    return this.#payload.toString('utf8', this.#at - length, this.#at);
  }
}
