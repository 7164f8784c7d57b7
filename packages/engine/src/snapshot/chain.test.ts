import { describe, expect, it } from 'vitest';
import { EngineError } from '../errors.js';
import { resolveChain, wantsFlattening } from './chain.js';
import type { Manifest } from './manifest.js';

const MEMORY = 64 * 4096;

/** As much of a manifest as a chain looks at. */
function link(id: string, chain: string[] = [], more: object = {}): Manifest {
  const file = (name: string) => ({ name, bytes: MEMORY, chunks: [] });
  const branch = { parent: chain.at(-1), chain, extents: [], lowerDisks: [], ...more };
  return {
    id,
    memoryBytes: MEMORY,
    files: { memory: file('memory'), state: file('state'), disk: file('disk') },
    ...(chain.length > 0 && { branch }),
  } as unknown as Manifest;
}

function resolve(top: string, manifests: Manifest[]) {
  const known = new Map(manifests.map((manifest) => [manifest.id, manifest]));
  const find = async (id: string): Promise<Manifest> => {
    const manifest = known.get(id);
    if (!manifest) throw new EngineError('snapshot_not_found', `no ${id}`);
    return manifest;
  };
  return find(top).then((manifest) => resolveChain(manifest, find, (id) => `/${id}`));
}

const flat = { flat: { changed: [], layer: { physicalBytes: 0, logicalBytes: 0 } } };

describe('the chain of a snapshot', () => {
  it('goes down to its base', async () => {
    const chain = await resolve('c', [link('a'), link('b', ['a']), link('c', ['a', 'b'])]);
    expect(chain.links.map(({ id }) => id)).toEqual(['a', 'b', 'c']);
    expect(chain.disks.map(({ format }) => format)).toEqual(['raw', 'qcow2', 'qcow2']);
  });

  it('ends at the first that is flat, whatever has become of those below', async () => {
    const b = link('b', ['a'], flat);
    b.files.disk.whole = true;
    const chain = await resolve('c', [b, link('c', ['a', 'b'])]);
    expect(chain.links.map(({ id }) => id)).toEqual(['b', 'c']);
    expect(chain.disks).toEqual([
      { path: '/b/disk', format: 'raw' },
      { path: '/c/disk', format: 'qcow2' },
    ]);
  });

  it.each([
    ['that is missing', [link('c', ['a', 'b']), link('a')], /b below it is missing/],
    ['that is another one', [link('c', ['a', 'b']), link('b', ['x']), link('a')], /b stands on x, not on a/],
    ['of a base that is not its own', [link('c', ['a']), link('a', ['x'])], /x below it|a stands on x/],
  ] as [string, Manifest[], RegExp][])('is refused over a link %s', async (_name, manifests, message) => {
    await expect(resolve('c', manifests)).rejects.toMatchObject({
      code: 'snapshot_corrupt',
      message: expect.stringMatching(message),
    });
  });

  it('is worth flattening when it is long', async () => {
    const ids = Array.from({ length: 12 }, (_, index) => `s${index}`);
    const manifests = ids.map((id, index) => link(id, ids.slice(0, index)));
    expect(wantsFlattening(await resolve('s3', manifests))).toBe(false);
    expect(wantsFlattening(await resolve('s11', manifests))).toBe(true);
  });
});
