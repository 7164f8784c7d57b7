/** Decoder of LZ4 blocks and of the legacy frame that Linux kernels are packed in. */

const LEGACY_MAGIC = 0x184c2102;
/** A legacy block holds at most this many bytes unpacked. */
const LEGACY_BLOCK = 8 * 1024 * 1024;

/**
 * Unpacks one LZ4 block into `to` from `start` on.
 *
 * Each sequence is a token (literal length in the high four bits, match length less 4 in the low four), literals, and a match
 * {distance: 16 bits, more length}; a length of 15 goes on in bytes until one is not 255. The last sequence has no match.
 *
 * @returns one past the last byte written
 * @throws RangeError when the block is not well formed or does not fit
 */
export function decodeBlock(from: Buffer, to: Buffer, start: number): number {
  let at = 0;
  let end = start;
  const byte = () => {
    const value = from[at++];
    if (value === undefined) throw new RangeError('LZ4 block ends inside a sequence');
    return value;
  };
  const length = (first: number) => {
    let total = first;
    if (first === 15) {
      let more: number;
      do {
        more = byte();
        total += more;
      } while (more === 255);
    }
    return total;
  };
  while (at < from.length) {
    const token = byte();
    const literals = length(token >> 4);
    if (at + literals > from.length || end + literals > to.length)
      throw new RangeError(`LZ4 block: ${literals} literal bytes do not fit`);
    from.copy(to, end, at, at + literals);
    at += literals;
    end += literals;
    if (at === from.length) return end;
    const distance = byte() | (byte() << 8);
    const match = length(token & 15) + 4;
    if (distance === 0 || distance > end - start || end + match > to.length)
      throw new RangeError(`LZ4 block: match of ${match} bytes at distance ${distance} does not fit`);
    // A match may overlap what it makes, as in a run of one byte: then it has to be copied in order.
    if (distance >= match) to.copyWithin(end, end - distance, end - distance + match);
    else for (let i = 0; i < match; i++) to[end + i] = to[end + i - distance]!;
    end += match;
  }
  return end;
}

/** Whether bytes begin as a legacy frame does. */
export function isLegacyFrame(bytes: Buffer): boolean {
  return bytes.length >= 4 && bytes.readUInt32LE(0) === LEGACY_MAGIC;
}

/**
 * Unpacks a legacy frame: the magic, then blocks, each after its packed size (32 bits). A kernel's build appends the unpacked
 * size (32 bits) to it, which is left out here.
 *
 * @throws RangeError when it is not such a frame, or is damaged
 */
export function decodeLegacyFrame(frame: Buffer): Buffer {
  if (!isLegacyFrame(frame)) throw new RangeError('not an LZ4 legacy frame');
  const parts: Buffer[] = [];
  let at = 4;
  while (at + 4 < frame.length) {
    const size = frame.readUInt32LE(at);
    if (size === LEGACY_MAGIC) {
      at += 4;
      continue;
    }
    if (size === 0 || at + 4 + size > frame.length)
      throw new RangeError(`LZ4 legacy frame: block of ${size} bytes at ${at} passes the end`);
    const block = Buffer.allocUnsafe(LEGACY_BLOCK);
    const end = decodeBlock(frame.subarray(at + 4, at + 4 + size), block, 0);
    parts.push(block.subarray(0, end));
    at += 4 + size;
  }
  return Buffer.concat(parts);
}
