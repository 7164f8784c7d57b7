/** Captures that compare no more than what was written since the one before: the kernel tells what that is. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  CaptureHome,
  childrenOf,
  ForkedQemu,
  noticed,
  shimBinary,
  shown,
  type WrittenLayer,
} from '../testing/captured-qemu.js';
import { adoptShim, type CapturedLayer } from './index.js';

/** So many pages that writes are noticed: 4 MiB do. */
const MANY = 4200;
const FIRST = 1000;

let home: CaptureHome;
let vmm: ForkedQemu;
let layers: WrittenLayer[];

beforeAll(async () => {
  home = await CaptureHome.make();
});
afterAll(() => home[Symbol.asyncDispose]());
beforeEach(async () => {
  vmm = await ForkedQemu.start(home);
  layers = [];
  vmm.write(FIRST, 0x11, MANY);
});
afterEach(() => vmm[Symbol.asyncDispose]());

interface Moments {
  mode?: 'live' | 'diff';
  /** Of the capture that the layers show; the last one by default. */
  since?: string;
  /** What the source writes before the freeze, and between it and the copy. */
  prepared?: () => void;
  frozen?: () => void;
}

/** Captures over the layers before, and adds one. */
async function capture({ mode = 'live', since, prepared, frozen }: Moments = {}): Promise<CapturedLayer> {
  const file = home.path('layer');
  const below = { ...home.below(layers, 0), id: since ?? `capture-${layers.length}` };
  await vmm.shim.capturePrepare({
    ram: vmm.ram,
    mode,
    below,
    layer: file,
    id: `capture-${layers.length + 1}`,
  });
  prepared?.();
  await vmm.shim.captureFreeze();
  frozen?.();
  const captured = await vmm.shim.captureCopy();
  layers.push({ file, extents: captured.extents });
  return captured;
}

const last = () => shown(layers.at(-1)!.file, layers.at(-1)!.extents);

describe.skipIf(!noticed)('a capture after another one of the same source', () => {
  it('compares what was written since, and finds it', async () => {
    expect((await capture()).comparedPages).toBe(MANY);
    vmm.write(FIRST + 7, 0x22);
    vmm.write(FIRST + 8, 0x11); // the same again
    vmm.write(FIRST + 9, 0);
    vmm.write(9000, 0x99);
    expect(await capture()).toMatchObject({ comparedPages: 4, unchangedPages: 1 });
    expect(await last()).toEqual({ [FIRST + 7]: 0x22, [FIRST + 9]: 0, 9000: 0x99 });
    expect((await capture()).comparedPages).toBe(0);
  });

  it('misses nothing that was written while the one before was under way', async () => {
    await capture({
      prepared: () => vmm.write(FIRST, 0x31),
      frozen: () => vmm.write(FIRST + 1, 0x32),
    });
    expect((await last())[FIRST]).toBe(0x31);
    expect((await last())[FIRST + 1]).toBe(0x11);
    vmm.write(FIRST + 2, 0x33);
    await capture({ prepared: () => vmm.write(FIRST + 3, 0x34), frozen: () => vmm.write(FIRST + 4, 0x35) });
    expect(await last()).toEqual({ [FIRST + 1]: 0x32, [FIRST + 2]: 0x33, [FIRST + 3]: 0x34 });
    await capture();
    expect(await last()).toEqual({ [FIRST + 4]: 0x35 });
  });

  it('ten times over shows the source as it is, wherever it was written', async () => {
    const now = new Map<number, number>();
    let seed = 1;
    const random = (n: number) => {
      seed = (seed * 48_271) % 2_147_483_647;
      return seed % n;
    };
    const scribble = () => {
      for (let i = 0; i < 40; i++) {
        const page = random(16_000);
        now.set(page, random(4) === 0 ? 0 : random(255) + 1);
        vmm.write(page, now.get(page)!);
      }
    };
    for (let round = 0; round < 10; round++) {
      scribble();
      const mode = round % 3 === 2 ? 'diff' : 'live';
      await capture({ mode, prepared: scribble });
      const then = new Map(now);
      const shot: Record<number, number> = {};
      for (const layer of layers) Object.assign(shot, await shown(layer.file, layer.extents));
      for (const [page, value] of then)
        expect(shot[page] ?? (page < 100 ? 0xb0 : 0), `page ${page}`).toBe(value);
    }
  });

  it('that has failed, or that nobody names, is not relied on', async () => {
    await capture();
    vmm.write(FIRST + 5, 0x55);
    const below = { ...home.below(layers, 0), id: 'capture-1' };
    const plan = { ram: vmm.ram, mode: 'live' as const, below, layer: home.path('layer'), id: 'capture-2' };
    await vmm.shim.capturePrepare(plan);
    await vmm.shim.captureFreeze();
    const clone = (await childrenOf(vmm.shim.pid)).find((pid) => pid !== vmm.shim.vmmPid)!;
    process.kill(clone, 'SIGKILL');
    await expect(vmm.shim.captureCopy()).rejects.toMatchObject({ code: 'vmm_failed' });
    expect(await capture()).toMatchObject({ comparedPages: 1 });
    expect(await last()).toEqual({ [FIRST + 5]: 0x55 });
    expect((await capture({ since: 'another' })).comparedPages).toBe(MANY);
    expect((await capture({ since: '' })).comparedPages).toBe(MANY);
  });

  it('compares everything once its shim has been replaced', async () => {
    await capture();
    vmm.write(FIRST + 6, 0x66);
    process.kill(vmm.shim.pid, 'SIGKILL');
    vmm.shim.detach();
    vmm.shim = await adoptShim(vmm.dir, { binary: shimBinary });
    expect((await capture()).comparedPages).toBe(MANY);
    expect(await last()).toEqual({ [FIRST + 6]: 0x66 });
    vmm.write(FIRST + 7, 0x77);
    expect((await capture()).comparedPages).toBe(1);
  });

  it('compares everything after another graft', async () => {
    await capture();
    const { files, extents } = home.below([]);
    await vmm.shim.graft({ ram: vmm.ram, files, extents });
    vmm.write(FIRST, 0x12);
    // What the first layer shows is newer than what the source shows now.
    expect((await capture()).comparedPages).toBe(MANY);
    const pages = await last();
    expect([pages[FIRST], pages[FIRST + 1], Object.keys(pages).length]).toEqual([0x12, 0, MANY]);
  });
});
