/** A QEMU with a shim, as a fork of a snapshot, for tests of captures: its RAM is written to from here. */
import { closeSync, openSync, readSync, statSync, writeSync } from 'node:fs';
import { chmod, chown, mkdir, mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { release, tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'vitest';
import { type LayerExtent, mergeLayers, PAGE, planGraft } from '../memory/index.js';
import { type CapturePlan, probeAbilities, type RamRange, type Shim, startShim } from '../shim/index.js';
import { connectUnix } from '../unix-socket.js';

const root = path.resolve(import.meta.dirname, '../../../..');
export const shimBinary = path.join(root, 'build/native', process.env.FORKD_TEST_SHIM ?? 'forkd-shim');
const RAM = 64 * 1024 * 1024;
const isRoot = process.getuid?.() === 0;

/** Whether live captures are possible here. */
export const permitted = (await probeAbilities(shimBinary)).injection;

const [major = 0, minor = 0] = release().split('.').map(Number);
/** Whether the kernel tells what a VMM has written: Linux 6.7 is the first. */
export const noticed = permitted && (major > 6 || (major === 6 && minor >= 7));

/** A layer that a capture has written. */
export interface WrittenLayer {
  file: string;
  extents: LayerExtent[];
}

/** A directory of a test's own, with a base: 100 pages of 0xb0, then zeros. */
export class CaptureHome implements AsyncDisposable {
  readonly dir: string;
  readonly base: string;
  #number = 0;

  private constructor(dir: string) {
    this.dir = dir;
    this.base = path.join(dir, 'base');
  }

  static async make(): Promise<CaptureHome> {
    const home = new CaptureHome(await mkdtemp(path.join(tmpdir(), 'forkd-capture-')));
    await using file = await open(home.base, 'w');
    await file.truncate(RAM);
    await file.write(Buffer.alloc(100 * PAGE, 0xb0), 0, 100 * PAGE, 0);
    return home;
  }

  /** A path of nothing yet. */
  path(name: string): string {
    return path.join(this.dir, `${name}-${this.#number++}`);
  }

  /** What a fork of the base under layers shows; all of them are its own unless `origin` says how many are. */
  below(layers: readonly WrittenLayer[], origin = layers.length): CapturePlan['below'] {
    const sizes = layers.map(({ file }) => statSync(file).size);
    const map = mergeLayers(
      RAM,
      layers.map(({ extents }) => extents),
    );
    return {
      files: [
        { path: this.base, bytes: BigInt(RAM) },
        ...layers.map(({ file }, index) => ({ path: file, bytes: BigInt(sizes[index]!) })),
      ],
      extents: planGraft(map, RAM).extents,
      origin: origin + 1,
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.dir, { recursive: true, force: true });
  }
}

/** A VMM that has been forked from a base under layers, and never runs. */
export class ForkedQemu implements AsyncDisposable {
  readonly dir: string;
  readonly ram: RamRange[];
  readonly #fd: number;
  shim: Shim;

  private constructor(dir: string, shim: Shim, ram: RamRange[]) {
    this.dir = dir;
    this.shim = shim;
    this.ram = ram;
    this.#fd = openSync(`/proc/${shim.vmmPid}/mem`, 'r+');
  }

  static async start(home: CaptureHome, layers: readonly WrittenLayer[] = []): Promise<ForkedQemu> {
    const dir = home.path('sb');
    await mkdir(dir, { mode: 0o700 });
    if (isRoot) {
      await chown(dir, 0, 64_900);
      await chmod(dir, 0o1770);
    }
    const argv = [
      ...[
        '/usr/bin/qemu-system-x86_64',
        '-M',
        'microvm,memory-backend=mem',
        '-nodefaults',
        '-display',
        'none',
        '-m',
        '64',
      ],
      ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
      ...['-S', '-incoming', 'defer', '-object', `memory-backend-memfd,id=mem,size=${RAM},share=off`],
      ...['-chardev', 'socket,id=c,fd=@fd:qmp.sock@,server=on,wait=off', '-mon', 'chardev=c,mode=control'],
    ];
    const user = isRoot ? { uid: 64_900, gid: 64_900 } : {};
    const shim = await startShim({ dir, argv, sockets: ['qmp.sock'], ...user }, { binary: shimBinary });
    const monitor = await connectUnix(path.join(dir, 'qmp.sock'));
    await new Promise((resolve) => monitor.once('data', resolve)); // its greeting: RAM is there
    monitor.destroy();
    const ram = await shim.findRam('memfd:');
    const { files, extents } = home.below(layers);
    await shim.graft({ ram, files, extents });
    return new ForkedQemu(dir, shim, ram);
  }

  /** As the guest would: a private copy of each page. */
  write(page: number, value: number, pages = 1): void {
    const bytes = pages * PAGE;
    writeSync(this.#fd, Buffer.alloc(bytes, value), 0, bytes, Number(this.ram[0]!.address) + page * PAGE);
  }

  read(page: number): number {
    const bytes = Buffer.alloc(PAGE);
    readSync(this.#fd, bytes, 0, PAGE, this.ram[0]!.address + BigInt(page * PAGE));
    expect(bytes).toEqual(Buffer.alloc(PAGE, bytes[0]!));
    return bytes[0]!;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    closeSync(this.#fd);
    await this.shim.kill();
    await this.shim.end();
  }
}

/** Page number to value, of what a layer holds. */
export async function shown(file: string, extents: readonly LayerExtent[]): Promise<Record<number, number>> {
  const bytes = await readFile(file);
  const pages: Record<number, number> = {};
  for (const e of extents)
    for (let at = 0; at < e.length; at += PAGE)
      pages[(e.guestOffset + at) / PAGE] = e.kind === 'zero' ? 0 : bytes[e.fileOffset + at]!;
  return pages;
}

export async function childrenOf(pid: number): Promise<number[]> {
  const text = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
  return text.trim().split(' ').filter(Boolean).map(Number);
}
