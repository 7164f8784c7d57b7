/**
 * Fields of a payload: `tag:u16 zero:u16 length:u32`, then bytes. What the guest sends is believed only as far as it is
 * checked here: every field whole, its tag known, its size what the tag says.
 */
import { constants } from 'node:os';
import { fields as tags } from '@forkd/wire';
import { AgentError } from './errors.js';
import type { GuestPath } from './types.js';

export type FieldName = keyof typeof tags;

const FIELD_HEADER = 8;
const U32_MAX = 0xffff_ffff;
const U64_MAX = 0xffff_ffff_ffff_ffffn;

const names = new Map<number, FieldName>(
  (Object.entries(tags) as [FieldName, number][]).map(([name, tag]) => [tag, name]),
);

/** Tags whose value has one size only, in bytes. */
const sizes: Partial<Record<FieldName, number>> = {
  generation: 16,
  info: 48,
  outcome: 16,
  usage: 48,
  metrics: 23 * 8,
};
for (const name of ['wall_clock', 'monotonic', 'took', 'offset', 'length', 'mtime', 'age'] as const)
  sizes[name] = 8;
for (const name of [
  ...(['thaw', 'protocol', 'rows', 'cols', 'stdin', 'timeout', 'role', 'handle', 'pid', 'pty'] as const),
  ...(['from', 'lossless', 'signal', 'all', 'cancel', 'mode', 'uid', 'gid', 'mkdirs', 'follow'] as const),
  ...(['parents', 'replace', 'recursive', 'force', 'event', 'directory', 'cookie', 'port', 'state'] as const),
])
  sizes[name] = 4;

/** Builds a payload. Every value is checked before a byte goes out, so that the message can name it. */
export class FieldWriter {
  readonly #parts: Buffer[] = [];
  #size = 0;

  /** Bytes so far. */
  get size(): number {
    return this.#size;
  }

  bytes(name: FieldName, value: Uint8Array): this {
    const header = Buffer.alloc(FIELD_HEADER);
    header.writeUInt16LE(tags[name], 0);
    header.writeUInt32LE(value.length, 4);
    this.#parts.push(header, Buffer.from(value.buffer, value.byteOffset, value.length));
    this.#size += FIELD_HEADER + value.length;
    return this;
  }

  /** Text, or the bytes of a path or argument: everything the guest hands to the kernel as a C string, so without NUL. */
  text(name: FieldName, value: GuestPath): this {
    const encoded = typeof value === 'string' ? Buffer.from(value, 'utf8') : value;
    if (encoded.includes(0))
      throw new AgentError('invalid', `${name} has a NUL byte: ${JSON.stringify(encoded.toString())}`);
    return this.bytes(name, encoded);
  }

  u32(name: FieldName, value: number): this {
    if (!Number.isInteger(value) || value < 0 || value > U32_MAX)
      throw new AgentError('invalid', `${name} must be a whole number from 0 to ${U32_MAX}, got ${value}`);
    const encoded = Buffer.alloc(4);
    encoded.writeUInt32LE(value);
    return this.bytes(name, encoded);
  }

  u64(name: FieldName, value: bigint | number): this {
    if (typeof value === 'number' && !Number.isSafeInteger(value))
      throw new AgentError('invalid', `${name} must be a whole number, got ${value}`);
    const wide = BigInt(value);
    if (wide < 0n || wide > U64_MAX)
      throw new AgentError('invalid', `${name} must be from 0 to ${U64_MAX}, got ${value}`);
    const encoded = Buffer.alloc(8);
    encoded.writeBigUInt64LE(wide);
    return this.bytes(name, encoded);
  }

  /** A flag: present with 1, or absent. */
  flag(name: FieldName, value: boolean | undefined): this {
    return value === true ? this.u32(name, 1) : this;
  }

  finish(): Buffer {
    return Buffer.concat(this.#parts, this.#size);
  }
}

/** Fields as received. The constructor throws AgentError `protocol` where they are not whole. */
export class FieldReader {
  readonly #values = new Map<FieldName, Buffer[]>();

  constructor(payload: Buffer) {
    let at = 0;
    while (at < payload.length) {
      if (payload.length - at < FIELD_HEADER) throw broken(`half a field header at byte ${at}`);
      const tag = payload.readUInt16LE(at);
      const name = names.get(tag);
      if (name === undefined) throw broken(`unknown field ${tag}`);
      if (payload.readUInt16LE(at + 2) !== 0) throw broken(`field ${name} with a reserved bit`);
      const length = payload.readUInt32LE(at + 4);
      at += FIELD_HEADER;
      if (length > payload.length - at) throw broken(`field ${name} of ${length} bytes passes the end`);
      const size = sizes[name];
      if (size !== undefined && size !== length)
        throw broken(`field ${name} of ${length} bytes, not ${size}`);
      const value = payload.subarray(at, at + length);
      at += length;
      const before = this.#values.get(name);
      if (before) before.push(value);
      else this.#values.set(name, [value]);
    }
  }

  has(name: FieldName): boolean {
    return this.#values.has(name);
  }

  /** Every value of a repeated field, in order. */
  all(name: FieldName): Buffer[] {
    return this.#values.get(name) ?? [];
  }

  bytes(name: FieldName): Buffer {
    const value = this.#values.get(name)?.[0];
    if (value === undefined) throw broken(`field ${name} is missing`);
    return value;
  }

  text(name: FieldName, otherwise?: string): string {
    if (otherwise !== undefined && !this.has(name)) return otherwise;
    return this.bytes(name).toString('utf8');
  }

  u32(name: FieldName, otherwise?: number): number {
    if (otherwise !== undefined && !this.has(name)) return otherwise;
    return this.bytes(name).readUInt32LE(0);
  }

  u64(name: FieldName): bigint {
    return this.bytes(name).readBigUInt64LE(0);
  }
}

const errnoNames = new Map<number, string>(
  Object.entries(constants.errno).map(([name, number]) => [number, name]),
);

/** `ENOSPC` for 28. The guest's numbers are Linux's, as the host's are. */
export function errnoName(errno: number): string | undefined {
  return errno === 0 ? undefined : (errnoNames.get(errno) ?? `errno ${errno}`);
}

export function broken(what: string): AgentError {
  return new AgentError('protocol', `the guest agent broke the protocol: ${what}`);
}
