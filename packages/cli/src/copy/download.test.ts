import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import type { FileInfo } from '@forkd/api';
import type { Sandbox } from '@forkd/sdk';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { download } from './download.js';
import { Tally } from './tally.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'fk-dl-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

type Node =
  | { list: FileInfo[] }
  | { content: string | Error }
  | { target: string }
  | { special: FileInfo['type'] };

function info(path: string, node: Node): FileInfo {
  const type =
    'list' in node ? 'directory' : 'content' in node ? 'file' : 'target' in node ? 'symlink' : node.special;
  const name = path.split('/').at(-1) ?? '';
  return {
    name,
    path,
    type,
    size: 1,
    mode: 0o4755,
    uid: 0,
    gid: 0,
    mtime_ms: 0,
    ...('target' in node && { target: node.target }),
  };
}

/** A guest that may lie: listings say what `nodes` says, whatever it is. */
function guest(nodes: Record<string, Node>): Sandbox {
  const node = (path: string) => nodes[path] ?? { content: new Error(`no ${path}`) };
  return {
    files: {
      stat: async (path: string) => info(path, node(path)),
      list: async (path: string) => (node(path) as { list: FileInfo[] }).list,
      readStream: async (path: string) => {
        const { content } = node(path) as { content: string | Error };
        const stream = Readable.from(
          (async function* () {
            yield Buffer.from('part');
            if (content instanceof Error) throw content;
            yield Buffer.from(content);
          })(),
        );
        return { info: info(path, node(path)), stream };
      },
    },
  } as unknown as Sandbox;
}

const run = (nodes: Record<string, Node>, source: string, target: string, tally = new Tally()) =>
  download(guest(nodes), source, target, tally, new AbortController().signal);

describe('a download', () => {
  it('makes files, directories and links, and keeps no set-uid bit', async () => {
    const nodes: Record<string, Node> = {
      '/d/f': { content: '!' },
      '/d/l': { target: '../../anywhere' },
      '/d/p': { special: 'fifo' },
    };
    nodes['/d'] = { list: Object.entries(nodes).map(([path, node]) => info(path, node)) };
    const tally = new Tally();
    await run(nodes, '/d', join(dir, 'out'), tally);
    expect(readFileSync(join(dir, 'out/f'), 'utf8')).toBe('part!');
    expect(readlinkSync(join(dir, 'out/l'))).toBe('../../anywhere');
    expect(tally.toJSON()).toMatchObject({ files: 2, skipped: [{ path: '/d/p', reason: 'is a fifo' }] });
  });

  it.each(['../x', '..', '.', 'a/b', 'a\0b', ''])('refuses the name %j in a listing', async (name) => {
    const nodes = { '/d': { list: [{ ...info('/d/x', { content: '' }), name }] } };
    await expect(run(nodes, '/d', join(dir, 'out'))).rejects.toThrow(
      `the guest listed the name ${JSON.stringify(name)}`,
    );
    expect(readdirSync(dir)).toEqual(['out']);
    expect(readdirSync(join(dir, 'out'))).toEqual([]);
  });

  it('replaces a link where a file goes, and writes nothing through it', async () => {
    writeFileSync(join(dir, 'precious'), 'mine');
    mkdirSync(join(dir, 'out'));
    symlinkSync(join(dir, 'precious'), join(dir, 'out/f'));
    const nodes = { '/f': { content: '!' } };
    await run(nodes, '/f', join(dir, 'out'));
    expect(readFileSync(join(dir, 'precious'), 'utf8')).toBe('mine');
    expect(readFileSync(join(dir, 'out/f'), 'utf8')).toBe('part!');
  });

  it('does not go into a link that a listing repeats as a directory', async () => {
    mkdirSync(join(dir, 'precious'));
    const nodes: Record<string, Node> = { '/d/a/f': { content: 'evil' } };
    nodes['/d/a'] = { list: [info('/d/a/f', { content: '' })] };
    nodes['/d'] = { list: [info('/d/a', { target: join(dir, 'precious') }), info('/d/a', { list: [] })] };
    await run(nodes, '/d', join(dir, 'out')).catch(() => undefined);
    expect(readdirSync(join(dir, 'precious'))).toEqual([]);
  });

  it('that breaks off leaves the old file, and nothing half-made', async () => {
    writeFileSync(join(dir, 'f'), 'old');
    await expect(run({ '/f': { content: new Error('cut') } }, '/f', join(dir, 'f'))).rejects.toThrow('cut');
    expect(readFileSync(join(dir, 'f'), 'utf8')).toBe('old');
    expect(readdirSync(dir)).toEqual(['f']);
  });
});
