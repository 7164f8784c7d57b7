import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Registry } from '../registry/registry.js';

/** What a daemon that starts next would read, were the one that has this registry open killed now. */
export function afterKill<T>(path: string, read: (registry: Registry) => T): T {
  const dir = mkdtempSync(join(tmpdir(), 'forkd-registry-copy-'));
  try {
    const copy = join(dir, 'registry.db');
    for (const part of ['', '-wal', '-journal'])
      if (existsSync(path + part)) copyFileSync(path + part, copy + part);
    const registry = new Registry(copy);
    try {
      return read(registry);
    } finally {
      registry.close();
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}
