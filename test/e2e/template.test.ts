import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SnapshotDetail, TemplateDetail, TemplateInfo } from '@forkd/api';
import { describe, expect, it } from 'vitest';
import { forkd, forkdJson } from '../support/cli.js';

describe('forkd template', () => {
  it('keeps the snapshot when nothing has changed', async () => {
    const before = await forkdJson<SnapshotDetail>(['snapshot', 'show', 'busybox']);
    const result = await forkd(['template', 'build', 'busybox']);
    expect(result).toMatchObject({ code: 0, stdout: `busybox -> ${before.id}\n` });
    expect(result.stderr).toContain('nothing has changed');
  });

  it('lists what ships and what is built', async () => {
    const list = await forkdJson<TemplateInfo[]>(['template', 'ls']);
    expect(list.find(({ name }) => name === 'busybox')).toMatchObject({ built: true, building: false });
    expect(list.some(({ name }) => name === 'python')).toBe(true);
    expect((await forkd(['template', 'ls'])).stdout).toMatch(/^TEMPLATE +STATE/);
  });

  it('shows what a template has cost in time, disk and memory', async () => {
    const { cost } = await forkdJson<TemplateDetail>(['template', 'show', 'busybox']);
    const steps = cost?.steps ?? [];
    const names = steps.map(({ step }) => step);
    expect(names).toEqual([
      'host',
      'kernel',
      'initramfs',
      'image',
      'disk',
      'boot',
      'hello',
      'first-command',
      'freeze',
      'capture',
    ]);
    const sum = steps.reduce((total, { ms }) => total + ms, 0);
    expect(sum).toBeGreaterThan(0.8 * (cost?.build_ms ?? 0));
    expect(sum).toBeLessThanOrEqual(cost?.build_ms ?? 0);
    expect(cost).toMatchObject({
      memory_logical_bytes: 128 * 1024 ** 2,
      disk_logical_bytes: 256 * 1024 ** 2,
    });
    // Files have holes: what is allocated is less than what a machine sees.
    expect(cost?.memory_physical_bytes).toBeGreaterThan(1024 ** 2);
    expect(cost?.memory_physical_bytes).toBeLessThan(cost?.memory_logical_bytes ?? 0);
    expect(cost?.own_bytes).toBeLessThan(128 * 1024 ** 2);
    expect(cost?.image_users).toBeGreaterThanOrEqual(1);
    const { stdout } = await forkd(['template', 'show', 'busybox']);
    expect(stdout).toMatch(/^memory +128 MiB each; \S+ MiB shared by all children$/m);
    expect(stdout).toMatch(/^boot +\S+ (ms|s) +done +Boot the machine$/m);
  });

  it('verifies a snapshot', async () => {
    expect((await forkd(['snapshot', 'verify', 'busybox'])).stdout).toContain('is intact');
  });

  it('refuses unknown names, paths and damaged files, and names them', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'fk-tp-'));
    const file = join(dir, 'bad.yaml');
    writeFileSync(file, 'base: busybox\nmemroy: 64\n');
    try {
      const cases: [string[], RegExp][] = [
        [['build', 'nope'], /there is no template "nope"/],
        [['build', '..'], /"\.\."/],
        [['build', file], /memroy/],
        [['show', 'nope'], /there is no template "nope"/],
        [['rm', 'nope'], /there is no template "nope"/],
      ];
      for (const [args, message] of cases) {
        const result = await forkd(['template', ...args]);
        expect(result.stderr).toMatch(message);
        expect([64, 66]).toContain(result.code);
      }
    } finally {
      rmSync(dir, { recursive: true });
    }
  });

  it('says which step of a build failed, with its output, and keeps what was built before', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'fk-tp-'));
    const file = join(dir, 'broken.yaml');
    writeFileSync(file, 'base: busybox\nsetup:\n  - echo last words; exit 3\n');
    try {
      const before = await forkdJson<SnapshotDetail>(['snapshot', 'show', 'busybox']);
      const result = await forkd(['template', 'build', file, '-t', 'busybox']);
      expect(result.code).toBe(70);
      expect(result.stderr).toMatch(/failed in step/);
      expect(result.stderr).toContain('last words');
      expect((await forkdJson<SnapshotDetail>(['snapshot', 'show', 'busybox'])).id).toBe(before.id);
    } finally {
      rmSync(dir, { recursive: true });
    }
  });
});
