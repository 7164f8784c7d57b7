import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  assertExtents,
  flattenMemory,
  type LayerExtent,
  MAX_MAPPINGS,
  mergeLayers,
  PAGE,
  planGraft,
} from './index.js';

const PAGES = 64;
const RAM = PAGES * PAGE;

/** A layer as a sparse list: page number to 'zero' or 'data', in file order. */
const layerArbitrary = fc
  .array(fc.record({ page: fc.nat(PAGES - 1), zero: fc.boolean() }), { maxLength: 40 })
  .map((marks) => {
    const pages = new Map(marks.map((mark) => [mark.page, mark.zero]));
    const extents: LayerExtent[] = [];
    let fileOffset = 0;
    for (const page of [...pages.keys()].sort((a, b) => a - b)) {
      const guestOffset = page * PAGE;
      if (pages.get(page)) extents.push({ kind: 'zero', guestOffset, length: PAGE });
      else {
        extents.push({ kind: 'data', guestOffset, length: PAGE, fileOffset });
        fileOffset += PAGE;
      }
    }
    return extents;
  });

/** What a reader sees page by page: the plain definition that the merge has to agree with. */
function shown(layers: LayerExtent[][], page: number): string {
  for (let index = layers.length - 1; index >= 0; index--) {
    const hit = layers[index]!.find(
      (e) => e.guestOffset <= page * PAGE && page * PAGE < e.guestOffset + e.length,
    );
    if (hit)
      return hit.kind === 'zero' ? 'zero' : `${index + 1}@${hit.fileOffset + page * PAGE - hit.guestOffset}`;
  }
  return `0@${page * PAGE}`;
}

describe('a merged map', () => {
  it('shows each page once, from the topmost file that lists it', () => {
    fc.assert(
      fc.property(fc.array(layerArbitrary, { maxLength: 6 }), (layers) => {
        const map = mergeLayers(RAM, layers);
        let next = 0;
        for (const extent of map) {
          expect(extent.guestOffset).toBe(next);
          next += extent.length;
          for (let at = 0; at < extent.length; at += PAGE) {
            const seen = extent.kind === 'zero' ? 'zero' : `${extent.file}@${extent.fileOffset + at}`;
            expect(seen).toBe(shown(layers, (extent.guestOffset + at) / PAGE));
          }
        }
        expect(next).toBe(RAM);
      }),
    );
  });
});

describe('a graft plan', () => {
  it('stays within the bound on mappings however scattered the pages are', () => {
    const layer: LayerExtent[] = [];
    for (let i = 0; i < 20_000; i++)
      layer.push({
        kind: 'data',
        guestOffset: i * 2 * 32 * PAGE,
        length: (i % 2 ? 32 : 1) * PAGE,
        fileOffset: i * 32 * PAGE,
      });
    const ram = 20_000 * 2 * 32 * PAGE;
    const plan = planGraft(mergeLayers(ram, [layer]), ram);
    expect(plan.mappings).toBeLessThanOrEqual(MAX_MAPPINGS);
    expect(plan.extents).toHaveLength(20_001);
  });

  it('maps long extents and copies short ones', () => {
    const layer: LayerExtent[] = [
      { kind: 'data', guestOffset: 0, length: PAGE, fileOffset: 0 },
      { kind: 'data', guestOffset: 2 * PAGE, length: 32 * PAGE, fileOffset: PAGE },
    ];
    const plan = planGraft(mergeLayers(RAM, [layer]), RAM);
    expect(plan.extents.map((e) => e.kind)).toEqual(['map', 'copy', 'map']);
    expect(plan.copiedBytes).toBe(PAGE);
  });
});

describe('extents from outside', () => {
  it.each([
    ['half a page', [{ kind: 'zero', guestOffset: 100, length: PAGE }]],
    ['no length', [{ kind: 'zero', guestOffset: 0, length: 0 }]],
    ['past the end', [{ kind: 'zero', guestOffset: RAM, length: PAGE }]],
    ['not a number', [{ kind: 'zero', guestOffset: Number.NaN, length: PAGE }]],
    [
      'out of order',
      [
        { kind: 'zero', guestOffset: PAGE, length: PAGE },
        { kind: 'zero', guestOffset: 0, length: PAGE },
      ],
    ],
  ] as [string, LayerExtent[]][])('are refused: %s', (_name, extents) => {
    expect(() => assertExtents(extents, RAM)).toThrow(RangeError);
  });
});

describe('flattening', () => {
  let dir: string;
  beforeAll(async () => {
    dir = await mkdtemp(path.join(tmpdir(), 'forkd-flatten-'));
  });
  afterAll(() => rm(dir, { recursive: true }));

  it('keeps a page zeroed over a nonzero base zero, and leaves zeros as holes', async () => {
    const base = path.join(dir, 'base');
    const layer = path.join(dir, 'layer');
    await writeFile(
      base,
      Buffer.concat([Buffer.alloc(PAGE, 1), Buffer.alloc(PAGE, 2), Buffer.alloc(RAM - 2 * PAGE)]),
    );
    await writeFile(layer, Buffer.alloc(PAGE, 9));
    const map = mergeLayers(RAM, [
      [
        { kind: 'zero', guestOffset: 0, length: PAGE },
        { kind: 'data', guestOffset: 3 * PAGE, length: PAGE, fileOffset: 0 },
      ],
    ]);
    const written = await flattenMemory(map, [base, layer], path.join(dir, 'flat'), RAM);
    const flat = await readFile(path.join(dir, 'flat'));
    expect([flat[0], flat[PAGE], flat[2 * PAGE], flat[3 * PAGE]]).toEqual([0, 2, 0, 9]);
    expect(flat).toHaveLength(RAM);
    expect(written).toBe(2 * PAGE);
    expect((await stat(path.join(dir, 'flat'))).blocks * 512).toBeLessThanOrEqual(4 * PAGE);
  });

  it('fails on a layer that is shorter than its extents say', async () => {
    const base = path.join(dir, 'short');
    await writeFile(base, Buffer.alloc(PAGE));
    const map = mergeLayers(RAM, []);
    await expect(flattenMemory(map, [base], path.join(dir, 'flat2'), RAM)).rejects.toThrow(
      /short ends at byte 4096/,
    );
  });
});
