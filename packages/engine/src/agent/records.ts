/** What the guest sends as lists: file facts, outcomes, and records of fields in a stream. */
import { constants } from 'node:os';
import type { Readable } from 'node:stream';
import { outcomeKinds } from '@forkd/wire';
import { AgentError } from './errors.js';
import { broken, FieldReader } from './fields.js';
import type { FileInfo, FileType, OutcomeKind, ResourceUse } from './types.js';

/** Longest record that an agent sends: a path, a name and some numbers, or a process's arguments. */
const MAX_RECORD = 64 * 1024;
/** Most records of one answer: a guest must not fill the host's memory. */
const MAX_RECORDS = 1_000_000;

/** Field `info`. */
export function readInfo(fields: FieldReader): FileInfo {
  const info = fields.bytes('info');
  const mode = info.readUInt32LE(4);
  const nlink = info.readBigUInt64LE(40);
  return {
    type: fileTypes.get(info.readUInt32LE(0)) ?? 'unknown',
    mode: mode & 0o7777,
    uid: info.readUInt32LE(8),
    gid: info.readUInt32LE(12),
    size: info.readBigUInt64LE(16),
    mtimeNs: info.readBigInt64LE(24),
    ino: info.readBigUInt64LE(32),
    nlink: Number(nlink),
    ...(fields.has('target') ? { target: fields.text('target') } : {}),
  };
}

/** S_IFMT >> 12. */
const fileTypes = new Map<number, FileType>([
  [0o1, 'fifo'],
  [0o2, 'character'],
  [0o4, 'directory'],
  [0o6, 'block'],
  [0o10, 'file'],
  [0o12, 'symlink'],
  [0o14, 'socket'],
]);

const signalNames = new Map<number, string>(
  Object.entries(constants.signals).map(([name, number]) => [number, name]),
);

export function signalName(signal: number): string {
  return signalNames.get(signal) ?? (signal >= 34 && signal <= 64 ? `SIGRT${signal - 34}` : `SIG${signal}`);
}

export function signalNumber(signal: number | NodeJS.Signals): number {
  const number = typeof signal === 'number' ? signal : constants.signals[signal];
  if (!Number.isInteger(number) || number < 1 || number > 64)
    throw new AgentError('invalid', `there is no signal ${signal}: use a name such as SIGTERM, or 1 to 64`);
  return number;
}

/** Field `outcome`: the kind, and whether a descendant held the output open. */
export function readOutcome(outcome: Buffer): { kind: OutcomeKind; heldOpen: boolean } {
  const kind = outcome.readUInt32LE(0);
  const value = outcome.readUInt32LE(4);
  const heldOpen = outcome.readUInt32LE(12) !== 0;
  switch (kind) {
    case outcomeKinds.exited:
      return { kind: { kind: 'exited', code: value & 0xff }, heldOpen };
    case outcomeKinds.signaled: {
      const coreDumped = outcome.readUInt32LE(8) !== 0;
      return {
        kind: { kind: 'signaled', signal: value, signalName: signalName(value), coreDumped },
        heldOpen,
      };
    }
    case outcomeKinds.timeout:
      return { kind: { kind: 'timeout' }, heldOpen };
    case outcomeKinds.oom:
      return { kind: { kind: 'oom' }, heldOpen };
    case outcomeKinds.cancelled:
      return { kind: { kind: 'cancelled' }, heldOpen };
    default:
      throw broken(`outcome ${kind}`);
  }
}

/** Field `usage`. */
export function readUsage(usage: Buffer): { usage: ResourceUse; stdoutBytes: bigint; stderrBytes: bigint } {
  return {
    usage: {
      wallNs: usage.readBigUInt64LE(0),
      userUs: usage.readBigUInt64LE(8),
      systemUs: usage.readBigUInt64LE(16),
      maxRssKib: usage.readBigUInt64LE(24),
    },
    stdoutBytes: usage.readBigUInt64LE(32),
    stderrBytes: usage.readBigUInt64LE(40),
  };
}

/** Takes a stream of `length:u32, fields` apart. Yields what is whole; half a record at the end is an error. */
export async function* readRecords(stream: Readable): AsyncGenerator<FieldReader, void, undefined> {
  let rest: Buffer = Buffer.alloc(0);
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    const data: Buffer = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    let at = 0;
    while (data.length - at >= 4) {
      const length = data.readUInt32LE(at);
      if (length > MAX_RECORD) throw broken(`a record of ${length} bytes`);
      if (data.length - at - 4 < length) break;
      yield new FieldReader(data.subarray(at + 4, at + 4 + length));
      at += 4 + length;
    }
    rest = data.subarray(at);
  }
  if (rest.length > 0) throw broken(`the last record is ${rest.length} bytes short of whole`);
}

/** All records of an answer that is known to end. */
export async function collectRecords<T>(stream: Readable, read: (fields: FieldReader) => T): Promise<T[]> {
  const all: T[] = [];
  for await (const fields of readRecords(stream)) {
    if (all.length === MAX_RECORDS)
      throw new AgentError('too_large', `the guest lists more than ${MAX_RECORDS} entries`);
    all.push(read(fields));
  }
  return all;
}
