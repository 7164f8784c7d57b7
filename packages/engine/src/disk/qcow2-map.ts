import { type FileHandle, open } from 'node:fs/promises';
import { EngineError } from '../errors.js';
import type { LayerExtent } from '../memory/index.js';

/**
 * Reads which parts of a disk an overlay holds. Only what `emptyQcow2` makes and QEMU then fills is read: clusters of 64 KiB, nothing
 * compressed or encrypted, no snapshots inside. A VMM wrote the file, so nothing in it is trusted.
 *
 * ```text
 *   header -> L1 table: one entry for 512 MiB -> L2 table: one entry for each cluster of 64 KiB -> offset in the file
 *   L2 entry   bit 62 compressed   bit 0 reads as zeros   bits 9-55 offset; 0: shows what is below
 * ```
 */
const CLUSTER_BITS = 16;
const CLUSTER = 1 << CLUSTER_BITS;
const ENTRIES = CLUSTER / 8;
const OFFSET = 0x00ff_ffff_ffff_fe00n;
const COMPRESSED = 1n << 62n;
const ZEROS = 1n;

/**
 * @param path an overlay that nobody writes to
 * @param bytes size of the disk
 * @returns extents in disk order; their data may end past the file's end, where it is zero
 * @throws EngineError snapshot_corrupt when it is no overlay of ours
 */
export async function readQcow2Map(path: string, bytes: number): Promise<LayerExtent[]> {
  await using file = await open(path, 'r');
  const { size } = await file.stat();
  const table = await readL1(file, path, bytes, size);
  const extents: LayerExtent[] = [];
  for (let index = 0; index < table.length; index++) {
    const offset = Number(table[index]! & OFFSET);
    if (offset === 0) continue;
    const entries = await readTable(file, path, offset, ENTRIES, size);
    entries.forEach((entry, at) => {
      addCluster(extents, path, entry, (index * ENTRIES + at) * CLUSTER, { disk: bytes, file: size });
    });
  }
  return extents;
}

async function readL1(file: FileHandle, path: string, bytes: number, size: number): Promise<BigUint64Array> {
  const header = Buffer.alloc(104);
  const { bytesRead } = await file.read(header, 0, header.length, 0);
  if (bytesRead < header.length) throw corrupt(path, 'it is too short for a header');
  const facts = {
    magic: header.readUInt32BE(0) === 0x514649fb && header.readUInt32BE(4) === 3,
    'cluster size': header.readUInt32BE(20) === CLUSTER_BITS,
    'disk size': header.readBigUInt64BE(24) === BigInt(bytes),
    encryption: header.readUInt32BE(32) === 0,
    snapshots: header.readUInt32BE(60) === 0,
    features: header.readBigUInt64BE(72) === 0n,
  };
  for (const [name, right] of Object.entries(facts))
    if (!right) throw corrupt(path, `its header has another ${name} than ours`);
  const entries = Math.ceil(bytes / CLUSTER / ENTRIES);
  if (header.readUInt32BE(36) < entries) throw corrupt(path, 'its first table is too short');
  return readTable(file, path, Number(header.readBigUInt64BE(40)), entries, size);
}

async function readTable(
  file: FileHandle,
  path: string,
  offset: number,
  entries: number,
  size: number,
): Promise<BigUint64Array> {
  const buffer = Buffer.alloc(entries * 8);
  if (offset % CLUSTER !== 0 || offset + buffer.length > size)
    throw corrupt(path, `a table at byte ${offset} is not in it`);
  for (let done = 0; done < buffer.length; ) {
    const { bytesRead } = await file.read(buffer, done, buffer.length - done, offset + done);
    if (bytesRead === 0) throw corrupt(path, `it ends at byte ${offset + done}`);
    done += bytesRead;
  }
  buffer.swap64();
  return new BigUint64Array(buffer.buffer, buffer.byteOffset, entries);
}

/** Adds one cluster to the list, joined with the one before where both go on. */
function addCluster(
  extents: LayerExtent[],
  path: string,
  entry: bigint,
  guestOffset: number,
  sizes: { disk: number; file: number },
): void {
  if (entry === 0n) return;
  if ((entry & COMPRESSED) !== 0n) throw corrupt(path, 'a cluster is compressed');
  const length = Math.min(CLUSTER, sizes.disk - guestOffset);
  if (length <= 0) throw corrupt(path, 'a cluster is past the end of the disk');
  const last = extents.at(-1);
  const goesOn = last !== undefined && last.guestOffset + last.length === guestOffset;
  if ((entry & ZEROS) !== 0n) {
    if (goesOn && last.kind === 'zero') last.length += length;
    else extents.push({ kind: 'zero', guestOffset, length });
    return;
  }
  const fileOffset = Number(entry & OFFSET);
  if (fileOffset === 0) return; // Its flags say nothing of data: it shows what is below.
  if (fileOffset % CLUSTER !== 0 || fileOffset >= sizes.file)
    throw corrupt(path, `a cluster at byte ${fileOffset} is not in it`);
  if (goesOn && last.kind === 'data' && last.fileOffset + last.length === fileOffset) last.length += length;
  else extents.push({ kind: 'data', guestOffset, length, fileOffset });
}

function corrupt(path: string, problem: string): EngineError {
  return new EngineError('snapshot_corrupt', `the overlay ${path} is damaged: ${problem}`);
}
