import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkHost } from './checks.js';
import { chooseEngine } from './choice.js';
import { type Candidate, obstacle, type Prove } from './verdict.js';

const tcg: Candidate = { engine: 'qemu', accelerator: 'tcg' };
const kvm: Candidate = { engine: 'qemu', accelerator: 'kvm' };
const usable = (await obstacle(tcg)) === null;
const hasKvm = (await obstacle(kvm)) === null;

let home: string;
beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'forkd-checks-'));
});
afterAll(() => rm(home, { recursive: true, force: true }));

/** Finds of doctor on a host where the candidates that are named boot a guest; and what was tried for them. */
async function doctor(working: readonly string[], prove: boolean) {
  const tried: string[] = [];
  const boots: Prove = async ({ engine, accelerator }) => {
    tried.push(`${engine} on ${accelerator}`);
    if (!working.includes(tried.at(-1)!)) throw new Error('no console');
  };
  const checks = await checkHost({
    home,
    shimBinary: '/nonexistent',
    abilities: async () => ({ injection: false, changeUser: false }),
    choice: () => chooseEngine(home, {}, boots),
    prove: prove ? boots : undefined,
    signal: undefined,
  });
  return { tried, found: Object.fromEntries(checks.map(({ name, found }) => [name, found])) };
}

describe.skipIf(!usable)('doctor', () => {
  it('shows the verdicts that its own choice has just found, with reason, time and age', async () => {
    const { found } = await doctor(['qemu on tcg'], false);
    expect(found['qemu on tcg']).toMatch(/^works: our guest booted on it\. Found out in \d+ ms, \d+ s ago$/);
    if (hasKvm) expect(found['qemu on kvm']).toMatch(/^does not work: .*no console\. Found out in \d+ ms/);
    else expect(found['qemu on kvm']).toMatch(/^not available: /);
    expect(found.accelerator).toMatch(/^qemu on tcg: our guest booted/);
  });

  it('boots nothing again that it knows of, unless it is to prove: then what had failed', async () => {
    expect((await doctor(['qemu on tcg'], false)).tried).toEqual([]);
    const { tried, found } = await doctor(['qemu on tcg', 'qemu on kvm'], true);
    expect(tried).not.toContain('qemu on tcg');
    expect(tried.includes('qemu on kvm')).toBe(hasKvm);
    if (hasKvm) expect(found['qemu on kvm']).toMatch(/^works: /);
    expect(found.accelerator).toMatch(hasKvm ? /^qemu on kvm/ : /^qemu on tcg/);
  });
});
