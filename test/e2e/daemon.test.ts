import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { Forkd } from '@forkd/sdk';
import { describe, expect, it } from 'vitest';
import { forkd } from '../support/cli.js';
import { stopDaemon } from '../support/daemon.js';
import { makeHome } from '../support/home.js';
import { findLeftovers } from '../support/leftovers.js';

/** A home of its own, whose daemon ends with the test. */
function ownHome(): AsyncDisposable & { path: string; env: { FORKD_HOME: string } } {
  const path = makeHome();
  return {
    path,
    env: { FORKD_HOME: path },
    async [Symbol.asyncDispose]() {
      await stopDaemon(path);
      rmSync(path, { recursive: true, force: true });
    },
  };
}

describe('the daemon that the CLI starts', () => {
  it('is one, however many commands need it at once', async () => {
    await using home = ownHome();
    const results = await Promise.all([1, 2, 3].map(() => forkd(['ls', '--json'], { env: home.env })));
    for (const { code, stdout, stderr } of results)
      expect({ code, stdout, stderr }).toMatchObject({ code: 0, stdout: '[]\n' });
    const daemons = findLeftovers(home.path).processes.filter((line) => line.includes('serve'));
    expect(daemons).toHaveLength(1);
  });

  it('replaces a socket that nobody listens on any more', async () => {
    await using home = ownHome();
    const server = createServer().listen(join(home.path, 'forkd.sock'));
    await new Promise((resolve) => server.on('listening', resolve));
    // As a killed daemon leaves it: bound, and nobody there.
    const { renameSync } = await import('node:fs');
    renameSync(join(home.path, 'forkd.sock'), join(home.path, 'kept'));
    await new Promise((resolve) => server.close(resolve));
    renameSync(join(home.path, 'kept'), join(home.path, 'forkd.sock'));
    expect(await forkd(['ls', '--json'], { env: home.env })).toMatchObject({ code: 0, stdout: '[]\n' });
  });

  it('leaves its socket to the first of two', async () => {
    await using home = ownHome();
    await forkd(['ls'], { env: home.env });
    const second = await forkd(['serve'], { env: home.env });
    expect(second.code).not.toBe(0);
    expect(second.stderr + second.stdout).toMatch(/another daemon|runs already|already/i);
    await using client = new Forkd({ home: home.path });
    await client.health();
  });

  it('ends at SIGTERM and leaves nothing', async () => {
    await using home = ownHome();
    await forkd(['ls'], { env: home.env });
    await stopDaemon(home.path);
    expect(findLeftovers(home.path)).toEqual({ processes: [], sockets: [], mounts: [], files: [] });
  });
});

describe('a state directory that cannot be used', () => {
  it('is named, with what to do', async () => {
    await using home = ownHome();
    const file = join(home.path, 'file');
    writeFileSync(file, '');
    const result = await forkd(['ls'], { env: { FORKD_HOME: join(file, 'x') } });
    expect(result.code).toBe(78);
    expect(result.stderr).toContain(join(file, 'x'));
    expect(result.stderr).toContain('hint: make it writable for this user, or set FORKD_HOME');
  });

  it('is told apart from a missing HOME', async () => {
    const env = { FORKD_HOME: undefined, XDG_STATE_HOME: undefined, HOME: undefined };
    const result = await forkd(['ls'], { env });
    expect(result).toMatchObject({ code: 78 });
    expect(result.stderr).toContain('none of FORKD_HOME, XDG_STATE_HOME and HOME is set');
  });

  it('may not have a path too long for sockets', async () => {
    await using home = ownHome();
    const long = join(home.path, 'x'.repeat(100));
    mkdirSync(long);
    const result = await forkd(['ls'], { env: { FORKD_HOME: long } });
    expect(result.code).toBe(64);
    expect(result.stderr).toContain('107 bytes');
  });
});
