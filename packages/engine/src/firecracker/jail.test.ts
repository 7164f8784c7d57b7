import { mkdir, mkdtemp, readlink, rename, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { makeRunDirectory } from '../machine/run-directory.js';
import { probeAbilities } from '../shim/index.js';
import { findFirecracker } from './binary.js';
import { fcFiles } from './files.js';
import { findJailer, isJail, jailed, needsLoader } from './jail.js';
import { FirecrackerVmm } from './vmm.js';

const native = fileURLToPath(new URL('../../../../build/native/', import.meta.url));
const shimBinary = join(native, 'forkd-shim');
const binary = await findFirecracker().catch(() => null);
const soon = (): AbortSignal => AbortSignal.timeout(10_000);

let parent: string;
beforeAll(async () => {
  parent = await mkdtemp(join(tmpdir(), 'forkd-jail-'));
});
afterAll(() => rm(parent, { recursive: true, force: true }));

describe('the jailer', () => {
  it('is of no use to a program that needs a loader', async () => {
    expect(await needsLoader(process.execPath)).toBe(true);
    expect(await needsLoader(join(native, 'forkd-agent'))).toBe(false);
  });

  it.each([
    [{ FORKD_JAILER: 'off' }, /^FORKD_JAILER=off$/],
    [{ FORKD_JAILER: 'jailer' }, /no absolute path/],
    [{}, /is not there|takes root/],
  ])('is not used with %o, for a reason', async (env, reason) => {
    const found = await findJailer(join(native, 'forkd-agent'), env);
    expect(found).toMatchObject({ path: null, reason: expect.stringMatching(reason) });
  });

  it('is told to make its root of the directory itself, and the id once', async () => {
    const dir = join(parent, 'words');
    await mkdir(dir);
    const argv = await jailed('/opt/jailer', dir, { uid: 7, gid: 8 }, [
      process.execPath,
      '--id',
      'forkd',
      '--level',
      'Error',
    ]);
    expect(argv.slice(argv.indexOf('--') + 1)).toEqual(['--level', 'Error']);
    expect(argv.slice(0, 5)).toEqual(['/opt/jailer', '--uid', '7', '--gid', '8']);
    const root = join(dir, '.jail/node/forkd/root');
    expect(await readlink(root)).toBe('../../..');
    expect((await stat(root)).ino).toBe((await stat(dir)).ino);
    expect(argv).not.toContain('--daemonize');
    expect(argv).not.toContain('--new-pid-ns');
  });
});

describe.skipIf(!binary?.jailer.path)('a jailed Firecracker', () => {
  it('has its directory for its root, as a user of its own, and nothing of the way in is left', async () => {
    const dir = join(parent, 'vmm');
    const user = { uid: 64_900, gid: 64_900 };
    await makeRunDirectory(dir, user);
    await writeFile(join(dir, 'outside'), '');
    const abilities = await probeAbilities(shimBinary);
    const { path, jailer } = binary!;
    await using vmm = await FirecrackerVmm.start(
      { dir, binary: path, jailer: jailer.path, shimBinary, abilities, user },
      soon(),
    );
    const proc = `/proc/${vmm.shim.vmmPid}`;
    expect(await stat(join(proc, 'root/outside'))).toMatchObject({
      ino: (await stat(join(dir, 'outside'))).ino,
    });
    await expect(stat(join(proc, 'root/usr'))).rejects.toMatchObject({ code: 'ENOENT' });
    expect(await stat(proc)).toMatchObject({ uid: user.uid, gid: user.gid });
    const { uid, gid, mode } = await stat(dir);
    expect({ uid, gid, mode: mode & 0o7777 }).toEqual({ uid: 0, gid: user.gid, mode: 0o1770 });
    for (const name of ['.jail', 'firecracker'])
      await expect(stat(join(dir, name))).rejects.toMatchObject({ code: 'ENOENT' });
    expect(await isJail(dir)).toBe(true);
    await rename(dir, `${dir}-2`);
    vmm.moved(`${dir}-2`);
    expect(await vmm.status(soon())).toBe('not started');
    expect((await stat(join(`${dir}-2`, fcFiles.api))).uid).toBe(user.uid);
  });
});
