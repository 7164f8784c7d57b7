/** The ELF kernel inside a bzImage: what a VMM without a boot loader starts. */
import { gunzipSync } from 'node:zlib';
import { decodeLegacyFrame, isLegacyFrame } from './lz4.js';

/* Fields of the boot header: Linux, Documentation/arch/x86/boot.rst. */
const SETUP_SECTORS = 0x1f1;
const HEADER_MAGIC = 0x202;
const PAYLOAD_OFFSET = 0x248;
const PAYLOAD_LENGTH = 0x24c;

/**
 * Takes the ELF kernel out of a bzImage.
 *
 * @returns null when the payload is packed in a way that is not known here (known: LZ4 legacy frame, gzip)
 * @throws RangeError when the file is not a bzImage, or is damaged
 */
export function extractVmlinux(image: Buffer): Buffer | null {
  if (image.length < 0x260 || image.toString('latin1', HEADER_MAGIC, HEADER_MAGIC + 4) !== 'HdrS')
    throw new RangeError('not a bzImage: no boot header');
  const setup = ((image[SETUP_SECTORS] || 4) + 1) * 512;
  const start = setup + image.readUInt32LE(PAYLOAD_OFFSET);
  const length = image.readUInt32LE(PAYLOAD_LENGTH);
  if (length < 8 || start + length > image.length)
    throw new RangeError(`bzImage: payload of ${length} bytes at ${start} passes the end of ${image.length}`);
  const payload = image.subarray(start, start + length);
  const elf = unpack(payload);
  if (elf === null) return null;
  if (elf.length < 64 || elf.readUInt32BE(0) !== 0x7f454c46)
    throw new RangeError('bzImage: the unpacked payload is not an ELF file');
  const expected = payload.readUInt32LE(length - 4);
  if (elf.length !== expected)
    throw new RangeError(`bzImage: the payload unpacked to ${elf.length} bytes instead of ${expected}`);
  return elf;
}

function unpack(payload: Buffer): Buffer | null {
  if (isLegacyFrame(payload)) return decodeLegacyFrame(payload);
  if (payload.readUInt16BE(0) === 0x1f8b) return gunzipSync(payload.subarray(0, payload.length - 4));
  return null;
}
