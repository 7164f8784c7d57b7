import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { chooseEngine, wantedByEnvironment } from './choice.js';
import { type Candidate, obstacle, type Prove, rememberedVerdict } from './verdict.js';

const tcg: Candidate = { engine: 'qemu', accelerator: 'tcg' };
const kvm: Candidate = { engine: 'qemu', accelerator: 'kvm' };
const usable = (await obstacle(tcg)) === null;

let root: string;
let home: string;
let homes = 0;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'forkd-choice-'));
});
afterAll(() => rm(root, { recursive: true, force: true }));
afterEach(() => {
  vi.unstubAllEnvs();
});
beforeEach(() => {
  home = join(root, String(homes++));
});

/** A host on which only tcg boots a guest; what was tried is written down. */
function onlyTcg(tried: string[], works = true): Prove {
  return async ({ engine, accelerator }) => {
    tried.push(`${engine} on ${accelerator}`);
    if (accelerator === 'kvm' || !works) throw new Error('the console of the guest ended with: nothing');
  };
}

describe('the environment', () => {
  it('asks for nothing when it is empty, or says auto', () => {
    expect(wantedByEnvironment({})).toEqual({});
    expect(wantedByEnvironment({ FORKD_ENGINE: 'auto', FORKD_ACCELERATOR: 'auto' })).toEqual({});
  });

  it('asks for an engine and an accelerator', () => {
    expect(wantedByEnvironment({ FORKD_ENGINE: 'firecracker', FORKD_ACCELERATOR: 'kvm' })).toEqual({
      engine: 'firecracker',
      accelerator: 'kvm',
    });
  });

  it.each([
    [{ FORKD_ENGINE: 'xen' }, /FORKD_ENGINE="xen".*qemu, firecracker/],
    [{ FORKD_ACCELERATOR: '' }, /FORKD_ACCELERATOR="".*kvm, tcg/],
  ])('with a word that is not known is refused by name: %j', (env, words) => {
    expect(() => wantedByEnvironment(env)).toThrow(words);
  });
});

describe.skipIf(!usable)('the choice', () => {
  it('falls through to what boots our guest, and says why not before', async () => {
    const tried: string[] = [];
    const choice = await chooseEngine(home, {}, onlyTcg(tried));
    expect(choice).toMatchObject(tcg);
    expect(tried.at(-1)).toBe('qemu on tcg');
    expect(choice.reason).toMatch(
      /booted on it in \d+ ms.*firecracker on kvm cannot be used here.*qemu on kvm/,
    );
  });

  it('remembers each verdict, and does not boot again', async () => {
    await chooseEngine(home, {}, onlyTcg([]));
    const tried: string[] = [];
    expect(await chooseEngine(home, {}, onlyTcg(tried))).toMatchObject(tcg);
    expect(tried).toEqual([]);
    expect(await rememberedVerdict(home, tcg)).toMatchObject({ works: true });
  });

  it('does not remember a failure of the last resort', async () => {
    const choosing = chooseEngine(home, {}, onlyTcg([], false));
    await expect(choosing).rejects.toMatchObject({ code: 'host_unfit' });
    await expect(choosing).rejects.toThrow(
      /no engine works.*qemu on tcg cannot be used here: our guest did not boot/,
    );
    expect(await chooseEngine(home, {}, onlyTcg([]))).toMatchObject(tcg);
  });

  it('does not take a full disk for a verdict', async () => {
    const full: Prove = async () => {
      throw Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' });
    };
    const choosing = chooseEngine(home, {}, full);
    await expect(choosing).rejects.toMatchObject({ code: 'insufficient_disk' });
    await expect(choosing).rejects.toThrow(`under ${home}`);
    for (const candidate of [tcg, { ...tcg, accelerator: 'kvm' } as const])
      expect(await rememberedVerdict(home, candidate)).toBeUndefined();
  });

  it('takes tcg at its word when it is asked for', async () => {
    const tried: string[] = [];
    expect(await chooseEngine(home, { accelerator: 'tcg' }, onlyTcg(tried))).toMatchObject(tcg);
    expect(tried).toEqual([]);
  });

  it('never replaces what is asked for by something else', async () => {
    const choosing = chooseEngine(home, { engine: 'firecracker' }, onlyTcg([]));
    await expect(choosing).rejects.toThrow(/engine firecracker was asked for, but firecracker on kvm cannot/);
    const impossible = chooseEngine(home, { engine: 'firecracker', accelerator: 'tcg' }, onlyTcg([]));
    await expect(impossible).rejects.toThrow(/firecracker runs on kvm only/);
  });

  it('says all that is missing for what is asked for, and what mends it', async () => {
    vi.stubEnv('FORKD_FIRECRACKER', '/nowhere/firecracker');
    const seen = await obstacle(kvm);
    await chooseEngine(home, {}, onlyTcg([]));
    const choosing = chooseEngine(home, { engine: 'firecracker' }, onlyTcg([]));
    await expect(choosing).rejects.toThrow(/Firecracker \(\/nowhere\/firecracker\) is not installed/);
    await expect(choosing).rejects.toMatchObject({ remedy: expect.stringContaining('FORKD_FIRECRACKER') });
    // That kvm would not do either.
    await expect(choosing).rejects.toThrow(
      seen === null ? /kvm does not work for qemu here either: .*console/ : seen.reason,
    );
  });
});
