/** Pauses whose freeze is at the entry of an open, on a program that behaves as Firecracker does (native/shim/test_vmm.c). */
import { execFile } from 'node:child_process';
import { access, mkdir, mkdtemp, open, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { requestBytes } from '../firecracker/http.js';
import { PAGE } from '../memory/index.js';
import { connectUnix } from '../unix-socket.js';
import {
  adoptShim,
  type CapturePlan,
  type PauseScript,
  probeAbilities,
  type Shim,
  startShim,
} from './index.js';

const run = promisify(execFile);
const root = path.resolve(import.meta.dirname, '../../../..');
const binary = path.join(root, 'build/native', process.env.FORKD_TEST_SHIM ?? 'forkd-shim');
const abilities = await probeAbilities(binary);
const RAM = 1024 * 1024;
/** The page that the program's device counts up at every turn of its loop; the count is its state. */
const COUNTER_PAGE = 6;
/** The page that it has written of its upper range: it maps memory in two. */
const UPPER_PAGE = RAM / PAGE / 2 + 5;
const DISK = 4 * 1024 * 1024;

let home: string;
let program: string;
let dir: string;
let shim: Shim;
let number = 0;

beforeAll(async () => {
  home = await mkdtemp(path.join(tmpdir(), 'forkd-open-'));
  program = path.join(home, 'vmm');
  const flags = ['-std=gnu11', '-O1', '-Wall', '-Wextra', '-Werror', '-o', program, '-lpthread'];
  await run('gcc', [path.join(root, 'native/shim/test_vmm.c'), ...flags]);
});
afterAll(() => rm(home, { recursive: true, force: true }));
afterEach(async () => {
  await shim.kill();
  await shim.end();
});

async function start(): Promise<void> {
  dir = path.join(home, `sb-${number++}`);
  await mkdir(path.join(dir, 'no-memory'), { recursive: true });
  await writeFile(path.join(dir, 'memory'), Buffer.alloc(RAM, 0xb0));
  await using disk = await open(path.join(dir, 'disk'), 'w');
  await disk.truncate(DISK);
  await disk.write(Buffer.alloc(PAGE, 0xd1), 0, PAGE, DISK / 2);
  shim = await startShim({ dir, argv: [program], sockets: [] }, { binary });
  // Its name may come before it listens.
  for (let up = false; !up; )
    up = await connectUnix(path.join(dir, 'api.sock')).then(
      (socket) => socket.destroy() !== undefined,
      () => false,
    );
}

async function plan(mode: 'live' | 'diff'): Promise<CapturePlan> {
  const ram = await shim.findRam(`${path.basename(dir)}/memory`);
  const extent = { kind: 'map', file: 0, fileOffset: 0n, guestOffset: 0n, length: BigInt(RAM) } as const;
  const files = [{ path: path.join(dir, 'memory'), bytes: BigInt(RAM) }];
  return {
    ram,
    mode,
    below: { files, extents: [extent], origin: 1 },
    layer: path.join(home, `layer-${number++}`),
  };
}

function script(state: string, more: Partial<PauseScript> = {}): PauseScript {
  const save = { snapshot_path: state, mem_file_path: 'no-memory' };
  return {
    socket: 'api.sock',
    speaks: 'http',
    before: [
      requestBytes('PATCH', '/vm', { state: 'Paused' }),
      { copy: 'disk', to: path.join(dir, 'copy') },
      requestBytes('PUT', '/snapshot/create', save),
    ],
    after: [requestBytes('PATCH', '/vm', { state: 'Resumed' })],
    freezeAt: 'no-memory',
    deadlineMs: 10_000,
    ...more,
  };
}

/** What the program has carried out, by the state that each request asked for. */
async function carriedOut(): Promise<string[]> {
  const text = await readFile(path.join(dir, 'requests'), 'utf8');
  const bodies = text.trim().split('\n').filter(Boolean);
  return bodies.map((body) => JSON.parse(body).state ?? JSON.parse(body).snapshot_path);
}

/** The count in the layer, and in the state. */
async function counts(layer: string, at: number, state: string): Promise<[bigint, bigint]> {
  return [
    (await readFile(layer)).readBigUInt64LE(at),
    (await readFile(path.join(dir, state))).readBigUInt64LE(0),
  ];
}

describe.skipIf(!abilities.attach)('a freeze at the entry of an open', () => {
  it.each(abilities.injection ? (['live', 'diff'] as const) : (['diff'] as const))(
    'has memory and state of one instant though the device never rests: %s',
    async (mode) => {
      await start();
      for (const round of ['first', 'second', 'third']) {
        const capture = await plan(mode);
        expect((await shim.capturePrepare(capture)).mode).toBe(mode);
        const frozen = await shim.captureFreeze(script(round));
        expect(frozen.answer).toEqual({
          status: 400,
          text: expect.stringContaining('the memory backing file: Is a directory (os error 21)'),
        });
        expect(frozen.steps).toHaveLength(4); // pause, copy, save and freeze, resume
        const { extents } = await shim.captureCopy();
        const at = COUNTER_PAGE * PAGE;
        // A page that was copied before the pause, and again in it, is in the file twice.
        const fileOffset = expect.any(Number);
        expect(extents).toEqual([
          { kind: 'data', guestOffset: at, length: PAGE, fileOffset },
          { kind: 'data', guestOffset: UPPER_PAGE * PAGE, length: PAGE, fileOffset },
        ]);
        const [from, upper] = extents.map((extent) => (extent.kind === 'data' ? extent.fileOffset : -1));
        const layer = await readFile(capture.layer);
        expect(layer.subarray(upper!, upper! + PAGE)).toEqual(Buffer.alloc(PAGE, 0x5a));
        const [inMemory, inState] = await counts(capture.layer, from!, round);
        expect(inMemory).toBe(inState);
        await rm(path.join(dir, 'copy'));
      }
      const rounds = ['first', 'second', 'third'].flatMap((round) => ['Paused', round, 'Resumed']);
      expect(await carriedOut()).toEqual(rounds);
    },
  );

  it('copies the disk in the pause, without its holes', async () => {
    await start();
    await shim.capturePrepare(await plan('diff'));
    await shim.captureFreeze(script('state'));
    const copy = path.join(dir, 'copy');
    expect((await readFile(copy)).equals(await readFile(path.join(dir, 'disk')))).toBe(true);
    expect((await stat(copy)).blocks).toBeLessThan(DISK / 512 / 2);
  });

  it('of a save that is refused fails with the words, once the machine runs again, and leaves nothing', async () => {
    await start();
    const capture = await plan('diff');
    await shim.capturePrepare(capture);
    await expect(shim.captureFreeze(script('refused'))).rejects.toThrow(
      /did not open "no-memory".*400.*The snapshot is refused/,
    );
    expect(await carriedOut()).toEqual(['Paused', 'refused', 'Resumed']);
    for (const path of [capture.layer, `${dir}/copy`]) await expect(access(path)).rejects.toThrow();
    // And another may follow.
    await shim.capturePrepare(await plan('diff'));
    await shim.captureFreeze(script('state'));
  });

  it.each([
    ['a copy of a disk that is not there', { copy: 'missing', to: '/nowhere/x' }, /open missing/],
    ['a copy over a file that exists', { copy: 'disk', to: 'memory' }, /File exists/],
  ])('after %s is not tried: the machine runs again', async (_, step, words) => {
    await start();
    const to = step.to === 'memory' ? path.join(dir, 'memory') : step.to;
    const steps = [
      requestBytes('PATCH', '/vm', { state: 'Paused' }),
      { ...step, to },
      script('state').before[2]!,
    ];
    await shim.capturePrepare(await plan('diff'));
    await expect(shim.captureFreeze(script('state', { before: steps }))).rejects.toThrow(words);
    expect(await carriedOut()).toEqual(['Paused', 'Resumed']);
    expect((await stat(path.join(dir, 'memory'))).size).toBe(RAM);
  });

  it('is over in time: a machine whose save takes too long runs again', async () => {
    await start();
    await shim.capturePrepare(await plan('diff'));
    await expect(shim.captureFreeze(script('slow', { deadlineMs: 50 }))).rejects.toMatchObject({
      code: 'timeout',
    });
    expect(await carriedOut()).toEqual(['Paused', 'slow', 'Resumed']);
  });

  it('whose daemon goes in it resumes the machine, and leaves no clone, no layer and no tracer', async () => {
    await start();
    const capture = await plan(abilities.injection ? 'live' : 'diff');
    await shim.capturePrepare(capture);
    const freezing = shim.captureFreeze(script('slow'));
    freezing.catch(() => {});
    while (!(await carriedOut().catch((): string[] => [])).includes('Paused'))
      await new Promise(setImmediate);
    shim.detach();
    shim = await adoptShim(dir, { binary });
    await expect(freezing).rejects.toThrow();
    // On a busy host the daemon may be gone before the save is asked for: then it is not.
    expect([
      ['Paused', 'slow', 'Resumed'],
      ['Paused', 'Resumed'],
    ]).toContainEqual(await carriedOut());
    await expect(access(capture.layer)).rejects.toThrow();
    expect(await readFile(`/proc/${shim.vmmPid}/status`, 'utf8')).toMatch(/TracerPid:\t0\n/);
    const children = await readFile(`/proc/${shim.pid}/task/${shim.pid}/children`, 'utf8');
    expect(children.trim()).toBe(String(shim.vmmPid));
    expect(await readdir(dir)).toContain('requests');
  });
});

describe('a resume recipe for a VMM that does not speak first', () => {
  it('is sent when the daemon is gone', async () => {
    await start();
    const lines = [requestBytes('PATCH', '/vm', { state: 'Resumed' })];
    await shim.armResume({ socket: 'api.sock', lines, greets: false, deadlineMs: 60_000 });
    shim.detach();
    while ((await carriedOut()).length === 0) await new Promise(setImmediate);
    expect(await carriedOut()).toEqual(['Resumed']);
    shim = await adoptShim(dir, { binary });
  });
});
