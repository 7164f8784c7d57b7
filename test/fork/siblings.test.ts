import { spawn } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { ownHome } from '../sandbox/home.js';
import { failureOf, sh } from '../sandbox/support.js';
import { stopDaemon } from '../support/daemon.js';
import { eventually } from '../support/wait.js';

const checkout = fileURLToPath(new URL('../..', import.meta.url));
const native = join(checkout, 'build/native');

/** Native programs whose shim refuses to start as often as there are files in `refusals`. */
function failingPrograms(): { dir: string; refuse: (times: number) => void; left: () => number } {
  const dir = mkdtempSync(join(tmpdir(), 'fk-nt-'));
  writeFileSync(
    join(dir, 'forkd-shim'),
    `#!/bin/sh
for arg; do case "$arg" in --probe|--tsc|--version) exec ${native}/forkd-shim "$@";; esac; done
for f in ${dir}/refuse-*; do rm "$f" 2>/dev/null && exit 3; done
exec ${native}/forkd-shim "$@"
`,
  );
  writeFileSync(join(dir, 'forkd-agent'), `#!/bin/sh\nexec ${native}/forkd-agent "$@"\n`);
  for (const name of ['forkd-shim', 'forkd-agent']) chmodSync(join(dir, name), 0o755);
  return {
    dir,
    refuse: (times) => {
      for (let i = 0; i < times; i += 1) writeFileSync(join(dir, `refuse-${i}`), '');
    },
    left: () => readdirSync(dir).filter((name) => name.startsWith('refuse-')).length,
  };
}

it('a child that fails leaves its siblings, and nothing of itself', async () => {
  const programs = failingPrograms();
  await using home = await ownHome();
  try {
    await stopDaemon(home.path);
    const serve = [
      'packages/controller/dist/main.js',
      'serve',
      '--home',
      home.path,
      '--native-dir',
      programs.dir,
    ];
    spawn(process.execPath, serve, { cwd: checkout, stdio: 'ignore', detached: true }).unref();
    await eventually(
      () =>
        home.client.health().then(
          () => true as const,
          () => undefined,
        ),
      20_000,
    );

    programs.refuse(2);
    const { sandboxes, failures } = await home.client.fork({ snapshot: 'busybox', n: 8 });
    expect(programs.left()).toBe(0);
    expect(sandboxes.length + failures.length).toBe(8);
    expect(failures).toHaveLength(2);
    for (const { id, index, error } of failures) {
      expect(index).toBeLessThan(8);
      expect(error.error).toContain('the shim ended before it could answer');
      expect(error.remedy).not.toBe('');
      expect(existsSync(join(home.path, 'run', id))).toBe(false);
      expect(await failureOf(home.client.sandboxes.get(id))).toMatchObject({ code: 'sandbox_not_found' });
    }
    for (const box of sandboxes) expect(await sh(box, 'echo alive')).toBe('alive');
    expect(await home.client.sandboxes.list()).toHaveLength(6);

    // What was made ahead is used up first; then every start is refused.
    programs.refuse(100);
    await home.client.fork({ snapshot: 'busybox', n: 8 }).catch(() => undefined);
    const before = await home.client.sandboxes.list();
    const none = await failureOf(home.client.fork({ snapshot: 'busybox', n: 4 }));
    expect(none).toMatchObject({ code: 'fork_failed', status: 500 });
    expect(none.details?.failures).toHaveLength(4);
    expect(await home.client.sandboxes.list()).toEqual(before);
  } finally {
    rmSync(programs.dir, { recursive: true, force: true });
  }
});
