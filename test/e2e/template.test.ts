import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SnapshotDetail, TemplateInfo } from '@forkd/api';
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
