import { mkdtemp, readdir, rm, truncate, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { parseTemplate } from './parse.js';
import { SetUpDisks, setUpDigest } from './set-up-disks.js';

let home: string;
beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), 'forkd-setups-'));
});
afterEach(() => rm(home, { recursive: true, force: true }));

const digest = (yaml: string, image = 'i') =>
  setUpDigest({
    spec: parseTemplate(`base: busybox\n${yaml}`, 'x'),
    files: {},
    kernel: 'k',
    initramfs: 'r',
    image,
    pin: { engine: 'qemu' },
  });

describe('the digest of a setup', () => {
  it('does not hang on what comes after it', () => {
    const one = digest('setup: [a]');
    for (const later of [
      'warm_up: [b]',
      'ready: b',
      'interpreters: [{name: own, command: c}]',
      'description: d',
    ])
      expect(digest(`setup: [a]\n${later}`)).toBe(one);
  });

  it('changes with what its commands are, run on, and see', () => {
    const one = digest('setup: [a]');
    const others = [
      'setup: [b]',
      'setup: [a, a]',
      'setup: [{run: a, user: nobody}]',
      'setup: [a]\nenv: {A: 1}',
    ];
    const places = [
      'setup: [a]\nfiles: [{path: /a, content: b}]',
      'setup: [a]\ndisk: 1G',
      'setup: [a]\nmemory: 1G',
    ];
    for (const other of [...others, ...places]) expect(digest(other)).not.toBe(one);
    expect(digest('setup: [a]', 'j')).not.toBe(one);
  });
});

describe('disks that are kept', () => {
  const disks = () => readdir(join(home, 'cache/setups'));
  const make = async (name: string, bytes = 4096): Promise<string> => {
    const path = join(home, name);
    await writeFile(path, Buffer.alloc(bytes, 1));
    return path;
  };

  it('are found whole, by digest and size, and no other way', async () => {
    const kept = new SetUpDisks(home);
    expect(await kept.find('a', 4096)).toBeNull();
    const path = await kept.keep('a', await make('disk'));
    expect(await kept.find('a', 4096)).toBe(path);
    expect(await kept.find('a', 8192)).toBeNull();
    expect(await kept.find('b', 4096)).toBeNull();
    await truncate(path, 100);
    expect(await kept.find('a', 4096)).toBeNull();
    expect(await kept.keep('a', await make('disk'))).toBe(path);
    expect(await kept.find('a', 4096)).toBe(path);
  });

  it('are bounded: those that were used least lately go first', async () => {
    const kept = new SetUpDisks(home);
    const disk = await make('disk');
    for (let n = 0; n < 16; n++) {
      const path = await kept.keep(`d${n}`, disk);
      await utimes(path, n + 1, n + 1);
    }
    await kept.find('d0', 4096);
    await kept.keep('new', disk);
    const left = await disks();
    expect(left).toHaveLength(16);
    expect(left).toContain('d0.disk');
    expect(left).toContain('new.disk');
    expect(left).not.toContain('d1.disk');
  });

  it('go when no snapshot names them, and no build uses them', async () => {
    const kept = new SetUpDisks(home);
    for (const name of ['a', 'b', 'c']) await kept.keep(name, await make(`disk-${name}`, 65_536));
    const unused = async () => (await kept.unused(new Set(['a']))).map(({ digest }) => digest).sort();
    expect(await unused()).toEqual(['b', 'c']);
    {
      using _one = kept.use('b');
      {
        using _two = kept.use('b');
      }
      expect(await unused()).toEqual(['c']);
      expect(await kept.remove('b')).toBe(false);
    }
    const [b] = await kept.unused(new Set(['a', 'c']));
    expect(b?.bytes).toBeGreaterThanOrEqual(65_536);
    expect(await kept.remove('b')).toBe(true);
    expect((await disks()).sort()).toEqual(['a.disk', 'c.disk']);
    expect(await new SetUpDisks(join(home, 'none')).unused(new Set())).toEqual([]);
  });

  it('that a crash left half written are swept, and never found', async () => {
    const kept = new SetUpDisks(home);
    await kept.keep('a', await make('disk'));
    await writeFile(join(home, 'cache/setups/.tmp-4194303-x'), 'half');
    await kept.keep('b', await make('disk'));
    expect((await disks()).sort()).toEqual(['a.disk', 'b.disk']);
  });
});
