/**
 * Makes an empty qcow2 overlay as bytes: O(1), no process started.
 *
 * The overlay names no backing file: QEMU is given the snapshot's disk by node name when the child loads, so that an overlay
 * never leads anybody to a path.
 */

const CLUSTER_BITS = 16;
const CLUSTER = 1 << CLUSTER_BITS;
const HEADER_BYTES = 104;
/** Entries of one L2 table times the cluster: bytes of disk that one L1 entry stands for (512 MiB). */
const PER_L1 = (CLUSTER / 8) * CLUSTER;

/**
 * @param bytes size of the disk, a multiple of 512
 * @returns the file's first clusters: header, refcount table, one refcount block, L1 table
 */
export function emptyQcow2(bytes: number): Buffer {
  if (!Number.isSafeInteger(bytes) || bytes <= 0 || bytes % 512 !== 0)
    throw new RangeError(`disk size ${bytes} is not a positive multiple of 512 bytes`);
  const l1Entries = Math.ceil(bytes / PER_L1);
  const l1Clusters = Math.ceil((l1Entries * 8) / CLUSTER);
  const clusters = 3 + l1Clusters;
  const file = Buffer.alloc(clusters * CLUSTER);
  file.writeUInt32BE(0x514649fb, 0); // 'Q' 'F' 'I' 0xfb
  file.writeUInt32BE(3, 4);
  file.writeUInt32BE(CLUSTER_BITS, 20);
  file.writeBigUInt64BE(BigInt(bytes), 24);
  file.writeUInt32BE(l1Entries, 36);
  file.writeBigUInt64BE(BigInt(3 * CLUSTER), 40); // L1 table
  file.writeBigUInt64BE(BigInt(CLUSTER), 48); // refcount table
  file.writeUInt32BE(1, 56); // its clusters
  file.writeUInt32BE(4, 96); // refcounts of 16 bits
  file.writeUInt32BE(HEADER_BYTES, 100);
  file.writeBigUInt64BE(BigInt(2 * CLUSTER), CLUSTER); // first refcount block
  for (let cluster = 0; cluster < clusters; cluster++) file.writeUInt16BE(1, 2 * CLUSTER + cluster * 2);
  return file;
}
