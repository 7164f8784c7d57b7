import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { emptyQcow2 } from './qcow2.js';

const dir = mkdtempSync(join(tmpdir(), 'qcow2-'));
afterAll(() => rmSync(dir, { recursive: true }));

describe('an empty overlay', () => {
  test.each([512, 1 << 20, 1 << 30, 2 ** 40, 512 * 1001])(
    'of %d bytes is what QEMU makes of one',
    (bytes) => {
      const path = join(dir, `${bytes}.qcow2`);
      writeFileSync(path, emptyQcow2(bytes));
      const info = JSON.parse(
        execFileSync('qemu-img', ['info', '--output=json', path], { encoding: 'utf8' }),
      );
      expect(info).toMatchObject({ format: 'qcow2', 'virtual-size': bytes });
      expect(info['backing-filename']).toBeUndefined();
      expect(execFileSync('qemu-img', ['check', path], { encoding: 'utf8' })).toContain('No errors');
    },
  );

  test.each([0, -512, 100, 1.5, Number.NaN])('of %d bytes is refused', (bytes) => {
    expect(() => emptyQcow2(bytes)).toThrow(RangeError);
  });
});
