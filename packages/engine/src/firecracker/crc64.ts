/** CRC-64 as Firecracker puts it at the end of a state file: polynomial of Jones, reflected, nothing inverted. */

/** The reflected polynomial 0x95ac9329ac4bc9b5, in halves: BigInt would be slow. */
const HIGH = 0x95ac9329;
const LOW = 0xac4bc9b5;

const high = new Uint32Array(256);
const low = new Uint32Array(256);
for (let byte = 0; byte < 256; byte++) {
  let h = 0;
  let l = byte;
  for (let bit = 0; bit < 8; bit++) {
    const odd = l & 1;
    l = ((l >>> 1) | (h << 31)) >>> 0;
    h >>>= 1;
    if (odd) {
      h = (h ^ HIGH) >>> 0;
      l = (l ^ LOW) >>> 0;
    }
  }
  high[byte] = h;
  low[byte] = l;
}

/** The checksum of `bytes`. Of bytes that end in their own checksum (little-endian) it is 0. */
export function crc64(bytes: Uint8Array): bigint {
  let h = 0;
  let l = 0;
  for (const byte of bytes) {
    const index = (l ^ byte) & 0xff;
    l = (((l >>> 8) | (h << 24)) ^ low[index]!) >>> 0;
    h = ((h >>> 8) ^ high[index]!) >>> 0;
  }
  return (BigInt(h) << 32n) | BigInt(l);
}
