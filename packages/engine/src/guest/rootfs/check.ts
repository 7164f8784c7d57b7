/**
 * What a root file system of unknown origin may hold. Nothing of it is ever unpacked on the host: its entries go from one archive into
 * another. So these rules are about getting what one thinks one gets, and about an end.
 */
import { EngineError } from '../../errors.js';

export type EntryType = 'file' | 'directory' | 'symlink' | 'link' | 'fifo';

/** An entry as archives and directories have it. */
export interface RawEntry {
  name: string;
  /** As tar calls it. */
  type: string;
  /** Bytes of a file. */
  size: number;
  /** Of a link. */
  target?: string | null | undefined;
}

/** An entry that may go into an image: its path without "./" and slashes at the ends; '' is the root. */
export interface CheckedEntry {
  path: string;
  type: EntryType;
  /** Of a symlink as it is; of a hard link a path like `path`. */
  target: string | undefined;
}

export interface RootfsLimits {
  entries: number;
  /** Of all files together. */
  bytes: number;
}

export const rootfsLimits: RootfsLimits = { entries: 2_000_000, bytes: 64 * 1024 ** 3 };

const types: Readonly<Record<string, EntryType>> = {
  file: 'file',
  'contiguous-file': 'file',
  directory: 'directory',
  symlink: 'symlink',
  link: 'link',
  fifo: 'fifo',
};
const devices: ReadonlySet<string> = new Set(['character-device', 'block-device', 'socket']);
/** One of these has every root file system. */
const typical = ['bin', 'usr', 'etc', 'sbin'];

/** Takes the entries of one root file system, in order. */
export class RootfsCheck {
  readonly #what: string;
  readonly #limits: RootfsLimits;
  readonly #seen = new Map<string, EntryType>();
  #bytes = 0;
  /** Devices and sockets that were left out: /dev is the kernel's in a guest. */
  dropped = 0;

  constructor(what: string, limits: RootfsLimits = rootfsLimits) {
    this.#what = what;
    this.#limits = limits;
  }

  /**
   * Checks an entry.
   *
   * @returns null for one that is left out: a device, or a directory that is named again
   * @throws EngineError `build_failed`
   */
  take(entry: RawEntry): CheckedEntry | null {
    const path = this.#path(entry.name, 'its entry');
    if (devices.has(entry.type)) {
      this.dropped += 1;
      return null;
    }
    const type = types[entry.type];
    if (type === undefined) throw this.refuse(`its entry ${show(entry.name)} is of a kind that is not known`);
    this.#bytes += type === 'file' ? entry.size : 0;
    if (this.#seen.size >= this.#limits.entries)
      throw this.refuse(`it has more than ${this.#limits.entries} entries`);
    if (this.#bytes > this.#limits.bytes)
      throw this.refuse(`its files have more than ${Math.floor(this.#limits.bytes / 1024 ** 2)} MiB`);
    const before = this.#seen.get(path);
    if (before === 'directory' && type === 'directory') return null;
    if (before !== undefined || (path === '' && type !== 'directory'))
      throw this.refuse(`it has ${show(entry.name)} twice`);
    this.#enter(path, entry.name);
    this.#seen.set(path, type);
    return { path, type, target: this.#target(entry, type) };
  }

  /** Whether a path has been taken. */
  has(path: string): boolean {
    return this.#seen.has(path);
  }

  /** Call when there are no more entries. */
  end(): void {
    if (typical.some((name) => this.#seen.has(name))) return;
    throw this.refuse(
      this.#seen.has('manifest.json') || this.#seen.has('oci-layout')
        ? 'it is the layers of an image: make one tree of them, as "docker export" does'
        : `it is no root file system: it has none of ${typical.join(', ')}`,
    );
  }

  refuse(problem: string, cause?: unknown): EngineError {
    return new EngineError('build_failed', `${this.#what} cannot be a root file system: ${problem}`, {
      remedy: 'Make it from a root directory: tar -C DIR -cf ROOT.tar .',
      cause,
    });
  }

  /** Directories on the way there; what is not named is made by who packs. None may be anything else. */
  #enter(path: string, name: string): void {
    for (let at = path.indexOf('/'); at >= 0; at = path.indexOf('/', at + 1)) {
      const above = path.slice(0, at);
      const type = this.#seen.get(above);
      if (type !== undefined && type !== 'directory')
        throw this.refuse(`its entry ${show(name)} leads through ${show(above)}, which is a ${type}`);
    }
  }

  #path(name: string, what: string): string {
    if (name.startsWith('/')) throw this.refuse(`${what} ${show(name)} is absolute`);
    if (name.includes('\ufffd')) throw this.refuse(`${what} ${show(name)} is not UTF-8`);
    if (/[\0\n]/.test(name)) throw this.refuse(`${what} ${show(name)} has a NUL or a newline in its name`);
    const parts = name.split('/').filter((part) => part !== '' && part !== '.');
    if (parts.includes('..')) throw this.refuse(`${what} ${show(name)} leads out of it`);
    if (parts.some((part) => Buffer.byteLength(part) > 255) || Buffer.byteLength(name) > 4095)
      throw this.refuse(`${what} ${show(name)} has a name that is too long`);
    if (parts.at(-1)?.startsWith('.wh.'))
      throw this.refuse(`${what} ${show(name)} marks a deletion, as layers of images have them`);
    return parts.join('/');
  }

  #target(entry: RawEntry, type: EntryType): string | undefined {
    if (type !== 'symlink' && type !== 'link') return undefined;
    const target = entry.target ?? '';
    // Where a symlink leads is the guest's affair: it is followed in there only.
    if (type === 'symlink') {
      if (target === '' || target.includes('\0') || Buffer.byteLength(target) > 4095)
        throw this.refuse(`its link ${show(entry.name)} has no target that could be one`);
      return target;
    }
    const path = this.#path(target, `the target of its hard link ${show(entry.name)},`);
    const there = this.#seen.get(path);
    if (there === undefined || there === 'directory')
      throw this.refuse(
        `its hard link ${show(entry.name)} is to ${show(target)}, which is no file before it`,
      );
    return path;
  }
}

function show(name: string): string {
  return JSON.stringify(name.length > 200 ? `${name.slice(0, 200)}...` : name);
}
