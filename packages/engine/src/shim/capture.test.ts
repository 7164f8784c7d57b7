import { closeSync, openSync, readSync, writeSync } from 'node:fs';
import {
  access,
  chmod,
  chown,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  rm,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { type LayerExtent, mergeLayers, PAGE, planGraft } from '../memory/index.js';
import { connectUnix } from '../unix-socket.js';
import { adoptShim, type CapturePlan, probeAbilities, type RamRange, type Shim, startShim } from './index.js';

const root = path.resolve(import.meta.dirname, '../../../..');
const binary = path.join(root, 'build/native', process.env.FORKD_TEST_SHIM ?? 'forkd-shim');
const RAM = 64 * 1024 * 1024;
const isRoot = process.getuid?.() === 0;
const permitted = (await probeAbilities(binary)).injection;

let home: string;
let dir: string;
let base: string;
let shim: Shim;
let ram: RamRange[];
let fd: number;
let number = 0;

beforeAll(async () => {
  home = await mkdtemp(path.join(tmpdir(), 'forkd-capture-'));
  base = path.join(home, 'base');
  const file = await open(base, 'w');
  await file.truncate(RAM);
  await file.write(Buffer.alloc(100 * PAGE, 0xb0), 0, 100 * PAGE, 0);
  await file.close();
});
afterAll(() => rm(home, { recursive: true, force: true }));
afterEach(async () => {
  closeSync(fd);
  await shim.kill();
  await shim.end();
});

/** A QEMU whose RAM is `base` under `layers`, as a fork of a snapshot. */
async function fork(layers: { file: string; extents: LayerExtent[] }[] = []): Promise<void> {
  dir = path.join(home, `sb-${number++}`);
  await mkdir(dir, { mode: 0o700 });
  if (isRoot) {
    await chown(dir, 0, 64_900);
    await chmod(dir, 0o1770);
  }
  const argv = [
    '/usr/bin/qemu-system-x86_64',
    '-M',
    'microvm,memory-backend=mem',
    '-nodefaults',
    '-display',
    'none',
    '-m',
    '64',
  ];
  argv.push(
    '-sandbox',
    'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
    '-S',
    '-incoming',
    'defer',
  );
  argv.push('-object', `memory-backend-memfd,id=mem,size=${RAM},share=off`);
  argv.push('-chardev', 'socket,id=c,fd=@fd:qmp.sock@,server=on,wait=off', '-mon', 'chardev=c,mode=control');
  const user = isRoot ? { uid: 64_900, gid: 64_900 } : {};
  shim = await startShim({ dir, argv, sockets: ['qmp.sock'], ...user }, { binary });
  const monitor = await connectUnix(path.join(dir, 'qmp.sock'));
  await new Promise((resolve) => monitor.once('data', resolve)); // its greeting: RAM is there
  monitor.destroy();
  ram = await shim.findRam('memfd:');
  const below = belowOf(layers);
  await shim.graft({ ram, files: below.files, extents: below.extents });
  fd = openSync(`/proc/${shim.vmmPid}/mem`, 'r+');
}

function belowOf(
  layers: { file: string; extents: LayerExtent[] }[],
  origin = layers.length,
): CapturePlan['below'] {
  const sizes = layers.map(({ extents }) =>
    extents.reduce((sum, e) => sum + (e.kind === 'data' ? e.length : 0), 0),
  );
  return {
    files: [
      { path: base, bytes: BigInt(RAM) },
      ...layers.map(({ file }, index) => ({ path: file, bytes: BigInt(sizes[index]!) })),
    ],
    extents: planGraft(
      mergeLayers(
        RAM,
        layers.map(({ extents }) => extents),
      ),
      RAM,
    ).extents,
    origin: origin + 1,
  };
}

/** As the guest would: a private copy of the page. */
function write(page: number, value: number): void {
  writeSync(fd, Buffer.alloc(PAGE, value), 0, PAGE, Number(ram[0]!.address) + page * PAGE);
}
function read(page: number): number {
  const bytes = Buffer.alloc(PAGE);
  readSync(fd, bytes, 0, PAGE, ram[0]!.address + BigInt(page * PAGE));
  expect(bytes).toEqual(Buffer.alloc(PAGE, bytes[0]!));
  return bytes[0]!;
}

const layerPath = () => path.join(home, `layer-${number++}`);
/** Page number to value, of what a layer holds. */
async function shown(file: string, extents: LayerExtent[]): Promise<Record<number, number>> {
  const bytes = await readFile(file);
  const pages: Record<number, number> = {};
  for (const e of extents)
    for (let at = 0; at < e.length; at += PAGE)
      pages[(e.guestOffset + at) / PAGE] = e.kind === 'zero' ? 0 : bytes[e.fileOffset + at]!;
  return pages;
}

async function childrenOf(pid: number): Promise<number[]> {
  const text = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
  return text.trim().split(' ').filter(Boolean).map(Number);
}

describe.skipIf(!permitted)('a live capture', () => {
  it('holds the moment of the freeze, whatever the source writes afterwards', async () => {
    await fork();
    const layer = layerPath();
    write(3, 0x33);
    write(4, 0xb0); // what the base shows: no change
    write(50, 0); // zeroed over a nonzero base
    write(5000, 0x55);
    const prepared = await shim.capturePrepare({ ram, mode: 'live', below: belowOf([]), layer });
    expect(prepared).toEqual({ mode: 'live', privateBytes: 4 * PAGE });
    expect((await shim.captureFreeze()).ms).toBeLessThan(1000);
    write(3, 0x99);
    write(6000, 0x66);
    const captured = await shim.captureCopy();
    expect(await shown(layer, captured.extents)).toEqual({ 3: 0x33, 50: 0, 5000: 0x55 });
    expect(captured).toMatchObject({ bytes: 2 * PAGE, comparedPages: 4, unchangedPages: 1 });
    expect(captured.extents).toContainEqual({ kind: 'zero', guestOffset: 50 * PAGE, length: PAGE });
    expect(await childrenOf(shim.pid)).toEqual([shim.vmmPid]);
    expect([read(3), read(6000)]).toEqual([0x99, 0x66]);
  });

  it('repeated costs what has changed since the last, and a child of the last link shows it all', async () => {
    await fork();
    const layers: { file: string; extents: LayerExtent[] }[] = [];
    const expected = new Map<number, number>();
    for (let round = 1; round <= 10; round++) {
      for (let page = 200 + round * 10; page < 220 + round * 10; page++) {
        write(page, round);
        expected.set(page, round);
      }
      const file = layerPath();
      await shim.capturePrepare({ ram, mode: 'live', below: belowOf(layers, 0), layer: file });
      await shim.captureFreeze();
      const captured = await shim.captureCopy();
      expect(captured.bytes).toBe(20 * PAGE);
      layers.push({ file, extents: captured.extents });
    }
    closeSync(fd);
    await shim.kill();
    await shim.end();
    await fork(layers);
    for (const [page, value] of expected) expect(read(page)).toBe(value);
    expect(read(0)).toBe(0xb0);
    expect(read(10_000)).toBe(0);
  });

  it('lists a page that went back to what the source was forked from, though the last link has it otherwise', async () => {
    await fork();
    const first = layerPath();
    const second = layerPath();
    write(10, 0x11);
    await shim.capturePrepare({ ram, mode: 'live', below: belowOf([]), layer: first });
    await shim.captureFreeze();
    const link = { file: first, extents: (await shim.captureCopy()).extents };
    // A new graft: nothing is private any more, page 10 shows the base.
    const below = belowOf([]);
    await shim.graft({ ram, files: below.files, extents: below.extents });
    await shim.capturePrepare({ ram, mode: 'live', below: belowOf([link], 0), layer: second });
    await shim.captureFreeze();
    expect(await shown(second, (await shim.captureCopy()).extents)).toEqual({ 10: 0xb0 });
  });

  it('keeps nothing of its source alive, and survives its end', async () => {
    await fork();
    const layer = layerPath();
    write(3, 0x33);
    await shim.capturePrepare({ ram, mode: 'live', below: belowOf([]), layer });
    await shim.captureFreeze();
    const clone = (await childrenOf(shim.pid)).find((pid) => pid !== shim.vmmPid)!;
    expect(await readFile(`/proc/${clone}/status`, 'utf8')).toMatch(/State:\tt/);
    await shim.kill();
    expect(await shown(layer, (await shim.captureCopy()).extents)).toEqual({ 3: 0x33 });
    await expect(access(`/proc/${clone}`)).rejects.toThrow();
  });

  it('fails when its clone dies, and leaves no layer', async () => {
    await fork();
    const layer = layerPath();
    await shim.capturePrepare({ ram, mode: 'live', below: belowOf([]), layer });
    await shim.captureFreeze();
    const clone = (await childrenOf(shim.pid)).find((pid) => pid !== shim.vmmPid)!;
    process.kill(clone, 'SIGKILL');
    await expect(shim.captureCopy()).rejects.toMatchObject({ code: 'vmm_failed' });
    await expect(access(layer)).rejects.toThrow();
    expect(read(0)).toBe(0xb0);
    await shim.capturePrepare({ ram, mode: 'live', below: belowOf([]), layer }); // and another may begin
  });

  it('is aborted with no trace, by request, by its deadline and by the end of its daemon', async () => {
    await fork();
    const layer = layerPath();
    const plan: CapturePlan = { ram, mode: 'live', below: belowOf([]), layer };
    await shim.capturePrepare(plan);
    await expect(shim.capturePrepare(plan)).rejects.toThrow(/under way/);
    await shim.captureFreeze();
    await shim.captureAbort();
    expect(await childrenOf(shim.pid)).toEqual([shim.vmmPid]);
    await expect(access(layer)).rejects.toThrow();
    await expect(shim.captureCopy()).rejects.toThrow(/out of order/);

    await shim.capturePrepare({ ...plan, timeoutMs: 1 });
    await shim.captureFreeze();
    while ((await childrenOf(shim.pid)).length > 1) await new Promise((resolve) => setImmediate(resolve));
    await expect(shim.captureCopy()).rejects.toMatchObject({ code: 'timeout' });

    await shim.capturePrepare(plan);
    await shim.captureFreeze();
    shim.detach();
    shim = await adoptShim(dir, { binary });
    while ((await childrenOf(shim.pid)).length > 1) await new Promise((resolve) => setImmediate(resolve));
    while (
      await access(layer).then(
        () => true,
        () => false,
      )
    )
      await new Promise((resolve) => setImmediate(resolve));
    expect(read(0)).toBe(0xb0);
  });

  it('leaves its source running under its own filter, with its descriptors', async () => {
    await fork();
    const before = await readdir(`/proc/${shim.vmmPid}/fd`);
    await shim.capturePrepare({ ram, mode: 'live', below: belowOf([]), layer: layerPath() });
    await shim.captureFreeze();
    await shim.captureCopy();
    // None more; QEMU may close the monitor's last client meanwhile.
    expect(before).toEqual(expect.arrayContaining(await readdir(`/proc/${shim.vmmPid}/fd`)));
    expect(await readFile(`/proc/${shim.vmmPid}/status`, 'utf8')).toMatch(
      /TracerPid:\t0\n(?:.*\n)*Seccomp:\t2/,
    );
    const monitor = await connectUnix(path.join(dir, 'qmp.sock'));
    await new Promise((resolve) => monitor.once('data', resolve));
    monitor.destroy();
  });
});

describe('a diff capture', () => {
  it('copies in the pause', async () => {
    await fork();
    const layer = layerPath();
    write(7, 0x77);
    expect(await shim.capturePrepare({ ram, mode: 'diff', below: belowOf([]), layer })).toEqual({
      mode: 'diff',
      privateBytes: PAGE,
    });
    await shim.captureFreeze();
    write(7, 0x88);
    expect(await shown(layer, (await shim.captureCopy()).extents)).toEqual({ 7: 0x77 });
  });

  it('does not overwrite a file', async () => {
    await fork();
    const layer = layerPath();
    await writeFile(layer, 'kept');
    await expect(shim.capturePrepare({ ram, mode: 'diff', below: belowOf([]), layer })).rejects.toThrow(
      /File exists/,
    );
    expect(await readFile(layer, 'utf8')).toBe('kept');
  });
});
