/** Captures without a clone, of which most is copied before the pause. The VMM's monitor is played by the test: it writes in the pause. */
import { createServer, type Server } from 'node:net';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { assertExtents, PAGE } from '../memory/index.js';
import { CaptureHome, childrenOf, ForkedQemu, noticed, shown } from '../testing/captured-qemu.js';
import type { CapturedLayer, PauseScript } from './index.js';

const MANY = 1200;
const FIRST = 1000;
const script: PauseScript = { socket: 'played', before: ['stop'], after: ['cont'], deadlineMs: 10_000 };

let home: CaptureHome;
let vmm: ForkedQemu;
let monitor: Server;
let stopped: () => void;

beforeAll(async () => {
  home = await CaptureHome.make();
});
afterAll(() => home[Symbol.asyncDispose]());
beforeEach(async () => {
  vmm = await ForkedQemu.start(home);
  stopped = () => {};
  monitor = await play();
});
afterEach(async () => {
  monitor.close();
  await vmm[Symbol.asyncDispose]();
});

async function play(): Promise<Server> {
  const server = createServer((socket) => {
    socket.write('{"QMP":{}}\n');
    socket.on('data', (text) => {
      if (text.toString() === 'stop') stopped();
      socket.write('{"return":{}}\n');
    });
  });
  await new Promise<void>((resolve) => server.listen(path.join(vmm.dir, 'played'), resolve));
  return server;
}

/** One capture, and the layer that it wrote. */
async function capture(layer: string): Promise<CapturedLayer> {
  await vmm.shim.capturePrepare({ ram: vmm.ram, mode: 'diff', below: home.below([]), layer, id: 'one' });
  await vmm.shim.captureFreeze(script);
  return await vmm.shim.captureCopy();
}

/** The same live, by somebody who waits. Tells how many processes there were after the pause: the VMM, and perhaps its clone. */
async function captureWaiting(layer: string, patient = true): Promise<CapturedLayer & { processes: number }> {
  const plan = { ram: vmm.ram, mode: 'live' as const, patient, below: home.below([]), layer, id: 'one' };
  await vmm.shim.capturePrepare(plan);
  await vmm.shim.captureFreeze(script);
  const processes = (await childrenOf(vmm.shim.pid)).length;
  return { ...(await vmm.shim.captureCopy()), processes };
}

describe.skipIf(!noticed)('a copy before the pause', () => {
  it('is followed in the pause by what was written since, and by nothing else', async () => {
    const layer = home.path('layer');
    vmm.write(FIRST, 0x11, MANY);
    vmm.write(20, 0); // zeroed over a nonzero base, early
    vmm.write(21, 0);
    stopped = () => {
      vmm.write(FIRST, 0x21); // the first of a run
      vmm.write(FIRST + 10, 0x22, 100); // in the middle
      vmm.write(FIRST + 200, 0); // data that becomes zero
      vmm.write(FIRST + MANY - 1, 0x23, 2); // the last, and one beyond
      vmm.write(21, 0x24); // zero that becomes data
      vmm.write(22, 0); // new
      vmm.write(9000, 0x25);
    };
    const { extents, bytes } = await capture(layer);
    const expected: Record<number, number> = { 20: 0, 21: 0x24, 22: 0, 9000: 0x25, [FIRST + MANY]: 0x23 };
    for (let page = 0; page < MANY; page++) expected[FIRST + page] = page >= 10 && page < 110 ? 0x22 : 0x11;
    Object.assign(expected, { [FIRST]: 0x21, [FIRST + 200]: 0, [FIRST + MANY - 1]: 0x23 });
    expect(await shown(layer, extents)).toEqual(expected);
    expect(() => assertExtents(extents, 64 * 1024 * 1024)).not.toThrow();
    // Early: all of them; in the pause: those with other data since.
    expect(bytes).toBe((MANY + 1 + 100 + 2 + 1 + 1) * PAGE);
  });

  it('does not change what the next capture finds', async () => {
    const layers = [home.path('layer'), home.path('layer')];
    vmm.write(FIRST, 0x11, MANY);
    stopped = () => vmm.write(FIRST + 1, 0x31);
    const first = await capture(layers[0]!);
    stopped = () => {};
    vmm.write(FIRST + 2, 0x32);
    const below = { ...home.below([{ file: layers[0]!, extents: first.extents }], 0), id: 'one' };
    await vmm.shim.capturePrepare({ ram: vmm.ram, mode: 'diff', below, layer: layers[1]!, id: 'two' });
    await vmm.shim.captureFreeze(script);
    const second = await vmm.shim.captureCopy();
    expect(await shown(layers[1]!, second.extents)).toEqual({ [FIRST + 2]: 0x32 });
    expect(second).toMatchObject({ comparedPages: 2, unchangedPages: 1 });
  });

  it('spares a live capture its clone, where somebody waits', async () => {
    const layer = home.path('layer');
    vmm.write(FIRST, 0x11, 4 * MANY);
    stopped = () => vmm.write(FIRST + 1, 0x41);
    const { processes, extents } = await captureWaiting(layer);
    expect(processes).toBe(1);
    const pages = await shown(layer, extents);
    expect([pages[FIRST], pages[FIRST + 1], pages[FIRST + 2], Object.keys(pages).length]).toEqual([
      ...[0x11, 0x41, 0x11],
      4 * MANY,
    ]);
  });

  it('is not made where nobody waits, nor where there is little to copy', async () => {
    vmm.write(FIRST, 0x11, 4 * MANY);
    expect((await captureWaiting(home.path('layer'), false)).processes).toBe(2);
    await vmm[Symbol.asyncDispose]();
    await new Promise((resolve) => monitor.close(resolve));
    vmm = await ForkedQemu.start(home);
    monitor = await play();
    vmm.write(FIRST, 0x11, 10);
    expect((await captureWaiting(home.path('layer'))).processes).toBe(2);
  });

  it('gives way to a clone where much was written just before the freeze', async () => {
    const layer = home.path('layer');
    vmm.write(FIRST, 0x11, 4 * MANY);
    stopped = () => vmm.write(FIRST, 0xee, 2 * MANY);
    const { processes, extents } = await captureWaiting(layer);
    expect(processes).toBe(2);
    const pages = await shown(layer, extents);
    for (let page = 0; page < 4 * MANY; page++)
      expect(pages[FIRST + page]).toBe(page < 2 * MANY ? 0xee : 0x11);
  });

  it('shows the source as it was stopped, however much it writes meanwhile', async () => {
    const layer = home.path('layer');
    const now = new Array<number>(4 * MANY).fill(0x11);
    let round = 0;
    let on = true;
    vmm.write(FIRST, 0x11, 4 * MANY);
    const scribble = () => {
      if (!on) return;
      const at = (round % 7) * 100;
      const value = (round++ % 200) + 1;
      vmm.write(FIRST + at, value, 900);
      now.fill(value, at, at + 900);
      setImmediate(scribble);
    };
    stopped = () => {
      on = false;
    };
    scribble();
    const { extents } = await captureWaiting(layer);
    const pages = await shown(layer, extents);
    expect(now.map((_, page) => pages[FIRST + page])).toEqual(now);
  });
});
