/**
 * Writer of cpio archives in the `newc` form, which is what Linux unpacks as an initramfs.
 *
 * An entry is a header of 110 characters (the magic 070701, then 13 numbers of 8 hex digits), the name with a NUL, and the data;
 * name and data are each padded to 4 bytes. The entry TRAILER!!! ends the archive. All owners are root and all times 0, so that
 * the same content makes the same bytes.
 */

export type CpioEntry =
  | { type: 'directory'; path: string; mode?: number }
  | { type: 'file'; path: string; content: Buffer; mode?: number }
  | { type: 'symlink'; path: string; target: string }
  | { type: 'character'; path: string; major: number; minor: number; mode?: number };

const S_IFDIR = 0o040000;
const S_IFREG = 0o100000;
const S_IFLNK = 0o120000;
const S_IFCHR = 0o020000;

/**
 * Packs entries in the order given: a directory before what it holds.
 *
 * @param entries paths are relative to the root, without a leading slash
 */
export function writeCpio(entries: readonly CpioEntry[]): Buffer {
  const parts: Buffer[] = [];
  const seen = new Set<string>();
  for (const [index, entry] of entries.entries()) {
    const { path } = entry;
    if (path === '' || path.startsWith('/') || path.includes('\0') || seen.has(path))
      throw new RangeError(`cpio: bad or double path ${JSON.stringify(path)}`);
    seen.add(path);
    parts.push(packEntry(index + 1, entry));
  }
  parts.push(pack({ ino: 0, mode: 0, links: 1, major: 0, minor: 0 }, 'TRAILER!!!', Buffer.alloc(0)));
  const whole = Buffer.concat(parts);
  return Buffer.concat([whole, Buffer.alloc(padding(whole.length, 512))]);
}

function packEntry(ino: number, entry: CpioEntry): Buffer {
  const none = Buffer.alloc(0);
  const head = { ino, links: 1, major: 0, minor: 0 };
  switch (entry.type) {
    case 'directory':
      return pack({ ...head, mode: S_IFDIR | (entry.mode ?? 0o755), links: 2 }, entry.path, none);
    case 'file':
      return pack({ ...head, mode: S_IFREG | (entry.mode ?? 0o644) }, entry.path, entry.content);
    case 'symlink':
      return pack({ ...head, mode: S_IFLNK | 0o777 }, entry.path, Buffer.from(entry.target));
    case 'character': {
      const { major, minor } = entry;
      return pack({ ...head, mode: S_IFCHR | (entry.mode ?? 0o600), major, minor }, entry.path, none);
    }
  }
}

interface Head {
  ino: number;
  mode: number;
  links: number;
  /** Of the device that a device node stands for. */
  major: number;
  minor: number;
}

function pack(head: Head, path: string, data: Buffer): Buffer {
  const name = Buffer.from(`${path}\0`);
  // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
  const numbers = [head.ino, head.mode, 0, 0, head.links, 0, data.length];
  numbers.push(0, 0, head.major, head.minor, name.length, 0);
  const header = `070701${numbers.map((n) => n.toString(16).padStart(8, '0')).join('')}`;
  return Buffer.concat([
    Buffer.from(header, 'latin1'),
    name,
    Buffer.alloc(padding(header.length + name.length, 4)),
    data,
    Buffer.alloc(padding(data.length, 4)),
  ]);
}

function padding(length: number, unit: number): number {
  return (unit - (length % unit)) % unit;
}
