import { tmpdir } from 'node:os';
import { afterEach, expect, it, vi } from 'vitest';
import { makeDebianTar } from './debian.js';

afterEach(() => vi.unstubAllEnvs());

it('says what to install where there is no mmdebstrap, before anything runs', async () => {
  vi.stubEnv('PATH', '/nowhere');
  const made = makeDebianTar('bookworm', [], '/nowhere/tar', '/nowhere/scratch', { home: tmpdir() });
  await expect(made).rejects.toMatchObject({
    code: 'host_unfit',
    message: 'mmdebstrap, which makes Debian images, is not installed',
    remedy: 'apt-get install mmdebstrap',
  });
});
