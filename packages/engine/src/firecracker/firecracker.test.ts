/**
 * Against the real program where `FORKD_FIRECRACKER`, `FIRECRACKER_BIN` or PATH has one: its API answers without a machine too. What needs
 * kvm is in test/parity.
 */
import { mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { probeAbilities } from '../shim/index.js';
import { FirecrackerRefusal } from './api.js';
import { Arrival } from './arrival.js';
import { assertSupported, findFirecracker } from './binary.js';
import { fcFiles } from './files.js';
import { checkPause, pauseScript, saysStateIsSaved } from './pause.js';
import { assertWholeState } from './state-file.js';
import { FirecrackerVmm } from './vmm.js';

const shimBinary = fileURLToPath(new URL('../../../../build/native/forkd-shim', import.meta.url));
const binary = await findFirecracker().catch(() => null);
const soon = (): AbortSignal => AbortSignal.timeout(10_000);

let parent: string;
beforeAll(async () => {
  parent = await mkdtemp(join(tmpdir(), 'forkd-fc-'));
});
afterAll(() => rm(parent, { recursive: true, force: true }));

async function directory(name: string): Promise<string> {
  const dir = join(parent, name);
  await mkdir(dir);
  return dir;
}

async function refusalOf(request: Promise<unknown>): Promise<FirecrackerRefusal> {
  const error = await request.then(
    () => null,
    (reason: unknown) => reason,
  );
  if (error instanceof FirecrackerRefusal) return error;
  throw error ?? new Error('it was not refused');
}

describe('versions', () => {
  it.each(['1.10.0', '1.17.0-dev', '2.0.0'])('%s is supported', (version) => assertSupported(version));
  it.each(['0.25.2', '1.9.1'])('%s is refused by number', (version) => {
    expect(() => assertSupported(version)).toThrow(new RegExp(`${version}.*1\\.10`));
  });
});

describe('a device state without memory', () => {
  const said = 'Cannot perform open on the memory backing file: Is a directory (os error 21)';
  it.each([said, `Create snapshot error: ${said}`])('is saved when the refusal is "%s"', (fault) => {
    expect(saysStateIsSaved({ status: 400, text: JSON.stringify({ fault_message: fault }) })).toBe(true);
  });

  it.each([
    [400, 'Cannot perform open on the snapshot backing file: Is a directory (os error 21)'],
    [400, 'Cannot perform open on the memory backing file: Permission denied (os error 13)'],
    [400, `${said}; and more`],
    [500, said],
  ])('is not taken for saved after %i "%s"', async (status, fault) => {
    const answer = { status, text: JSON.stringify({ fault_message: fault }) };
    expect(saysStateIsSaved(answer)).toBe(false);
    await expect(checkPause(parent, 'state', { answer })).rejects.toThrow(`otherwise than the versions`);
  });

  it('is not to be had where the VMM may not be followed', () => {
    const abilities = { injection: false, changeUser: false, attach: false, reason: 'no ptrace here' };
    expect(() => pauseScript({ below: 'disk', node: '/x/disk' }, 'state', abilities)).toThrow(
      /no ptrace here/,
    );
  });

  it('that is damaged, short or no file is refused', async () => {
    const dir = await directory('states');
    await writeFile(join(dir, 'damaged'), Buffer.alloc(100, 7));
    await writeFile(join(dir, 'short'), Buffer.alloc(8));
    await expect(assertWholeState(join(dir, 'damaged'))).rejects.toThrow('checksum');
    await expect(assertWholeState(join(dir, 'short'))).rejects.toThrow('8 bytes');
    await expect(assertWholeState(dir)).rejects.toThrow(/bytes/);
  });
});

describe('a file that is about to come', () => {
  it('is waited for, and is found when it is there', async () => {
    const dir = await directory('arrival');
    using arrival = new Arrival(dir, 'late');
    await writeFile(join(dir, 'other'), '');
    const here = arrival.here(soon());
    await writeFile(join(dir, 'late'), '');
    await here;
    await arrival.here(soon());
  });

  it('is given up at the deadline', async () => {
    using arrival = new Arrival(await directory('never'), 'never');
    await expect(arrival.here(AbortSignal.timeout(20))).rejects.toThrow(/timeout|aborted/i);
  });
});

describe.skipIf(!binary)('a Firecracker without a machine', () => {
  let vmm: FirecrackerVmm;
  beforeAll(async () => {
    const dir = await directory('vmm');
    const abilities = await probeAbilities(shimBinary);
    vmm = await FirecrackerVmm.start(
      { dir, binary: binary!.path, jailer: null, shimBinary, abilities, user: undefined },
      soon(),
    );
  });
  afterAll(async () => {
    await vmm?.destroy();
  });

  it('tells its version and that nothing runs', async () => {
    const { firecracker_version: version } = await vmm.api.get<{ firecracker_version: string }>('/version');
    expect(version).toBe(binary!.version);
    expect(await vmm.status(soon())).toBe('not started');
  });

  it('is configured, and tells the configuration', async () => {
    await vmm.api.put('/machine-config', { vcpu_count: 1, mem_size_mib: 128, smt: false });
    expect(await vmm.api.get('/machine-config')).toMatchObject({ vcpu_count: 1, mem_size_mib: 128 });
  });

  it.each([
    [
      'a field of the wrong type',
      () => vmm.api.put('/machine-config', { vcpu_count: 'x' }),
      /vcpu_count|invalid/,
    ],
    ['an unknown path', () => vmm.api.put('/no-such-thing', {}), /no-such-thing/],
    ['a pause before the start', () => vmm.pause(), /not supported before starting/],
    ['a disk that is not there', () => vmm.api.put('/drives/disk', drive('missing')), /missing|No such file/],
    ['a save before the start', () => vmm.saveTemplate(), /not supported before starting/],
  ])('refuses %s, in words', async (_, request, words) => {
    const refusal = await refusalOf(request());
    expect(refusal).toMatchObject({ code: 'vmm_failed', status: 400 });
    expect(refusal.fault).toMatch(words);
  });

  it('is reached after its directory was renamed', async () => {
    const dir = join(parent, 'renamed');
    await rename(vmm.dir, dir);
    vmm.moved(dir);
    expect(await vmm.status(soon())).toBe('not started');
  });

  it('fails what waits for it with its end, and its end is told', async () => {
    expect(await vmm.destroy()).toMatchObject({ kind: 'signaled', signal: 'SIGKILL' });
    await expect(vmm.status(soon())).rejects.toMatchObject({ code: 'vmm_failed' });
  });
});

describe.skipIf(!binary)('a Firecracker that cannot start', () => {
  it('is told with its last words', async () => {
    const dir = await directory('no-socket');
    await mkdir(join(dir, fcFiles.api)); // It cannot make its socket.
    const abilities = await probeAbilities(shimBinary);
    const start = FirecrackerVmm.start(
      { dir, binary: binary!.path, jailer: null, shimBinary, abilities, user: undefined },
      soon(),
    );
    await expect(start).rejects.toMatchObject({ code: 'vmm_failed' });
  });

  it('refuses a snapshot that is none', async () => {
    const dir = await directory('bad-snapshot');
    const abilities = await probeAbilities(shimBinary);
    await using vmm = await FirecrackerVmm.start(
      { dir, binary: binary!.path, jailer: null, shimBinary, abilities, user: undefined },
      soon(),
    );
    for (const name of ['state-file', 'memory-file', 'disk-file'])
      await writeFile(join(parent, name), Buffer.alloc(4096, 1));
    const source = {
      files: [{ path: join(parent, 'memory-file'), bytes: 4096n }],
      extents: [],
      state: Buffer.alloc(0),
      statePath: join(parent, 'state-file'),
      disks: [{ path: join(parent, 'disk-file'), format: 'raw' as const }],
    };
    // It ends itself after that; its last words have the reason.
    await expect(vmm.load(source, soon())).rejects.toThrow(/Load snapshot error/);
  });
});

function drive(path: string): object {
  return { drive_id: 'disk', path_on_host: path, is_read_only: false, is_root_device: false };
}
