import { describe, expect, it } from 'vitest';
import { forkd, forkdJson } from '../support/cli.js';

interface Answer {
  ok: boolean;
  checks: { name: string; state: string; found: string; remedy?: string }[];
}

describe('forkd doctor', () => {
  it('passes on a host that runs these tests, and gives a remedy for whatever is not right', async () => {
    const { ok, checks } = await forkdJson<Answer>(['doctor']);
    expect(ok).toBe(true);
    expect(checks.length).toBeGreaterThan(6);
    for (const check of checks)
      expect(check.state === 'pass' || check.remedy !== undefined, check.name).toBe(true);
  });

  it('is for people, too', async () => {
    const { code, stdout, stderr } = await forkd(['doctor']);
    expect(code).toBe(0);
    expect(stdout).toMatch(/^pass {2}Node\.js: v/m);
    expect(stderr).toMatch(/\d+ passed, \d+ to know about, 0 failed/);
  });

  it('says what keeps the daemon from starting', async () => {
    const result = await forkd(['doctor'], { env: { FORKD_HOME: '/dev/null/x' } });
    expect(result.code).toBe(1);
    expect(result.stdout).toMatch(/^fail {2}state directory: .*\/dev\/null\/x/m);
  });
});
