import { access, readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { PAGE } from '../memory/index.js';
import {
  shimBinary as binary,
  CaptureHome,
  childrenOf,
  ForkedQemu,
  permitted,
  shown,
  type WrittenLayer,
} from '../testing/captured-qemu.js';
import { connectUnix } from '../unix-socket.js';
import { adoptShim, type CapturePlan } from './index.js';

let home: CaptureHome;
let vmm: ForkedQemu;

beforeAll(async () => {
  home = await CaptureHome.make();
});
afterAll(() => home[Symbol.asyncDispose]());
afterEach(() => vmm[Symbol.asyncDispose]());

const fork = async (layers: WrittenLayer[] = []) => {
  vmm = await ForkedQemu.start(home, layers);
};

/** Until the shim has no child but its VMM. */
async function onlyVmmLeft(): Promise<void> {
  while ((await childrenOf(vmm.shim.pid)).length > 1) await new Promise((resolve) => setImmediate(resolve));
}

describe.skipIf(!permitted)('a live capture', () => {
  it('holds the moment of the freeze, whatever the source writes afterwards', async () => {
    await fork();
    const layer = home.path('layer');
    vmm.write(3, 0x33);
    vmm.write(4, 0xb0); // what the base shows: no change
    vmm.write(50, 0); // zeroed over a nonzero base
    vmm.write(5000, 0x55);
    const prepared = await vmm.shim.capturePrepare({
      ram: vmm.ram,
      mode: 'live',
      below: home.below([]),
      layer,
    });
    expect(prepared).toEqual({ mode: 'live', privateBytes: 4 * PAGE });
    expect((await vmm.shim.captureFreeze()).ms).toBeLessThan(1000);
    vmm.write(3, 0x99);
    vmm.write(6000, 0x66);
    const captured = await vmm.shim.captureCopy();
    expect(await shown(layer, captured.extents)).toEqual({ 3: 0x33, 50: 0, 5000: 0x55 });
    expect(captured).toMatchObject({ bytes: 2 * PAGE, comparedPages: 4, unchangedPages: 1 });
    expect(captured.extents).toContainEqual({ kind: 'zero', guestOffset: 50 * PAGE, length: PAGE });
    expect(await childrenOf(vmm.shim.pid)).toEqual([vmm.shim.vmmPid]);
    expect([vmm.read(3), vmm.read(6000)]).toEqual([0x99, 0x66]);
  });

  it('repeated costs what has changed since the last, and a child of the last link shows it all', async () => {
    await fork();
    const layers: WrittenLayer[] = [];
    const expected = new Map<number, number>();
    for (let round = 1; round <= 10; round++) {
      for (let page = 200 + round * 10; page < 220 + round * 10; page++) {
        vmm.write(page, round);
        expected.set(page, round);
      }
      const file = home.path('layer');
      await vmm.shim.capturePrepare({
        ram: vmm.ram,
        mode: 'live',
        below: home.below(layers, 0),
        layer: file,
      });
      await vmm.shim.captureFreeze();
      const captured = await vmm.shim.captureCopy();
      expect(captured.bytes).toBe(20 * PAGE);
      layers.push({ file, extents: captured.extents });
    }
    await vmm[Symbol.asyncDispose]();
    await fork(layers);
    for (const [page, value] of expected) expect(vmm.read(page)).toBe(value);
    expect(vmm.read(0)).toBe(0xb0);
    expect(vmm.read(10_000)).toBe(0);
  });

  it('lists a page that went back to what the source was forked from, though the last link has it otherwise', async () => {
    await fork();
    const first = home.path('layer');
    const second = home.path('layer');
    vmm.write(10, 0x11);
    await vmm.shim.capturePrepare({ ram: vmm.ram, mode: 'live', below: home.below([]), layer: first });
    await vmm.shim.captureFreeze();
    const link = { file: first, extents: (await vmm.shim.captureCopy()).extents };
    // A new graft: nothing is private any more, page 10 shows the base.
    const below = home.below([]);
    await vmm.shim.graft({ ram: vmm.ram, files: below.files, extents: below.extents });
    await vmm.shim.capturePrepare({
      ram: vmm.ram,
      mode: 'live',
      below: home.below([link], 0),
      layer: second,
    });
    await vmm.shim.captureFreeze();
    expect(await shown(second, (await vmm.shim.captureCopy()).extents)).toEqual({ 10: 0xb0 });
  });

  it('keeps nothing of its source alive, and survives its end', async () => {
    await fork();
    const layer = home.path('layer');
    vmm.write(3, 0x33);
    await vmm.shim.capturePrepare({ ram: vmm.ram, mode: 'live', below: home.below([]), layer });
    await vmm.shim.captureFreeze();
    const clone = (await childrenOf(vmm.shim.pid)).find((pid) => pid !== vmm.shim.vmmPid)!;
    expect(await readFile(`/proc/${clone}/status`, 'utf8')).toMatch(/State:\tt/);
    await vmm.shim.kill();
    expect(await shown(layer, (await vmm.shim.captureCopy()).extents)).toEqual({ 3: 0x33 });
    await expect(access(`/proc/${clone}`)).rejects.toThrow();
  });

  it('fails when its clone dies, and leaves no layer', async () => {
    await fork();
    const layer = home.path('layer');
    await vmm.shim.capturePrepare({ ram: vmm.ram, mode: 'live', below: home.below([]), layer });
    await vmm.shim.captureFreeze();
    const clone = (await childrenOf(vmm.shim.pid)).find((pid) => pid !== vmm.shim.vmmPid)!;
    process.kill(clone, 'SIGKILL');
    await expect(vmm.shim.captureCopy()).rejects.toMatchObject({ code: 'vmm_failed' });
    await expect(access(layer)).rejects.toThrow();
    expect(vmm.read(0)).toBe(0xb0);
    await vmm.shim.capturePrepare({ ram: vmm.ram, mode: 'live', below: home.below([]), layer }); // and another may begin
  });

  it('is aborted with no trace, by request, by its deadline and by the end of its daemon', async () => {
    await fork();
    const layer = home.path('layer');
    const plan: CapturePlan = { ram: vmm.ram, mode: 'live', below: home.below([]), layer };
    await vmm.shim.capturePrepare(plan);
    await expect(vmm.shim.capturePrepare(plan)).rejects.toThrow(/under way/);
    await vmm.shim.captureFreeze();
    await vmm.shim.captureAbort();
    expect(await childrenOf(vmm.shim.pid)).toEqual([vmm.shim.vmmPid]);
    await expect(access(layer)).rejects.toThrow();
    await expect(vmm.shim.captureCopy()).rejects.toThrow(/out of order/);

    await vmm.shim.capturePrepare({ ...plan, timeoutMs: 1 });
    // Nobody asks for the copy before its clone has gone for want of time. On a busy host that time is over before there is a clone.
    const late = vmm.shim
      .captureFreeze()
      .then(() => onlyVmmLeft())
      .then(() => vmm.shim.captureCopy());
    await expect(late).rejects.toMatchObject({ code: 'timeout' });
    await onlyVmmLeft();
    await expect(access(layer)).rejects.toThrow();
    await expect(vmm.shim.captureCopy()).rejects.toThrow(/out of order/);

    await vmm.shim.capturePrepare(plan);
    await vmm.shim.captureFreeze();
    vmm.shim.detach();
    vmm.shim = await adoptShim(vmm.dir, { binary });
    await onlyVmmLeft();
    while (
      await access(layer).then(
        () => true,
        () => false,
      )
    )
      await new Promise((resolve) => setImmediate(resolve));
    expect(vmm.read(0)).toBe(0xb0);
  });

  it('leaves its source running under its own filter, with its descriptors', async () => {
    await fork();
    const before = await readdir(`/proc/${vmm.shim.vmmPid}/fd`);
    await vmm.shim.capturePrepare({
      ram: vmm.ram,
      mode: 'live',
      below: home.below([]),
      layer: home.path('layer'),
    });
    await vmm.shim.captureFreeze();
    await vmm.shim.captureCopy();
    // None more; QEMU may close the monitor's last client meanwhile.
    expect(before).toEqual(expect.arrayContaining(await readdir(`/proc/${vmm.shim.vmmPid}/fd`)));
    expect(await readFile(`/proc/${vmm.shim.vmmPid}/status`, 'utf8')).toMatch(
      /TracerPid:\t0\n(?:.*\n)*Seccomp:\t2/,
    );
    const monitor = await connectUnix(path.join(vmm.dir, 'qmp.sock'));
    await new Promise((resolve) => monitor.once('data', resolve));
    monitor.destroy();
  });
});

describe('a diff capture', () => {
  it('copies in the pause', async () => {
    await fork();
    const layer = home.path('layer');
    vmm.write(7, 0x77);
    expect(
      await vmm.shim.capturePrepare({ ram: vmm.ram, mode: 'diff', below: home.below([]), layer }),
    ).toEqual({
      mode: 'diff',
      privateBytes: PAGE,
    });
    await vmm.shim.captureFreeze();
    vmm.write(7, 0x88);
    expect(await shown(layer, (await vmm.shim.captureCopy()).extents)).toEqual({ 7: 0x77 });
  });

  it('does not overwrite a file', async () => {
    await fork();
    const layer = home.path('layer');
    await writeFile(layer, 'kept');
    await expect(
      vmm.shim.capturePrepare({ ram: vmm.ram, mode: 'diff', below: home.below([]), layer }),
    ).rejects.toThrow(/File exists/);
    expect(await readFile(layer, 'utf8')).toBe('kept');
  });
});
