/** Writer of POSIX (ustar) archives: how a root file system is described to `sqfstar` without being root. */

export type TarEntry =
  | { type: 'directory'; path: string; mode?: number; uid?: number; gid?: number }
  | { type: 'file'; path: string; content: Buffer; mode?: number }
  | { type: 'symlink'; path: string; target: string };

const BLOCK = 512;

/**
 * Packs entries in the order given, owned by root unless said, with time 0.
 *
 * @param entries paths are relative to the root, at most 100 bytes
 */
export function writeTar(entries: readonly TarEntry[]): Buffer {
  const parts: Buffer[] = [];
  for (const entry of entries) {
    const content = entry.type === 'file' ? entry.content : Buffer.alloc(0);
    parts.push(
      header(entry, content.length),
      content,
      Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK),
    );
  }
  parts.push(Buffer.alloc(2 * BLOCK));
  return Buffer.concat(parts);
}

const kinds = { file: '0', symlink: '2', directory: '5' } as const;
const modes = { file: 0o644, symlink: 0o777, directory: 0o755 } as const;

function header(entry: TarEntry, size: number): Buffer {
  const block = Buffer.alloc(BLOCK);
  const text = (value: string, at: number, room: number) => {
    const bytes = Buffer.from(value);
    if (bytes.length > room || bytes.includes(0))
      throw new RangeError(`tar: ${JSON.stringify(value)} does not fit in ${room} bytes`);
    bytes.copy(block, at);
  };
  const octal = (value: number, at: number, room: number) =>
    text(value.toString(8).padStart(room - 1, '0'), at, room - 1);
  text(entry.path, 0, 100);
  octal(('mode' in entry ? entry.mode : undefined) ?? modes[entry.type], 100, 8);
  octal(('uid' in entry ? entry.uid : undefined) ?? 0, 108, 8);
  octal(('gid' in entry ? entry.gid : undefined) ?? 0, 116, 8);
  octal(size, 124, 12);
  octal(0, 136, 12);
  text(kinds[entry.type], 156, 1);
  if (entry.type === 'symlink') text(entry.target, 157, 100);
  text('ustar', 257, 6);
  text('00', 263, 2);
  text('root', 265, 32);
  text('root', 297, 32);
  // The checksum is summed with its own field as blanks.
  block.fill(' ', 148, 156);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return block;
}
