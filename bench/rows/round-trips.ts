import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Forkd, Sandbox } from '@forkd/sdk';
import { repeat, type Series, timed } from '../statistics.js';

const run = promisify(execFile);
const CLI = fileURLToPath(new URL('../../packages/cli/bin/forkd.cjs', import.meta.url));

export interface RoundTrips {
  evalRtt: Series;
  execTrueRtt: Series;
  /** `forkd exec ID true`, whole process. */
  cliExec: Series;
}

/** Round trips in a warm child. */
export async function roundTrips(
  client: Forkd,
  home: string,
  template: string,
  n: number,
): Promise<RoundTrips> {
  const { sandboxes, failures } = await client.fork({ snapshot: template, n: 1 });
  const child = sandboxes[0];
  if (!child) throw new Error(failures[0]?.error.error ?? 'no child');
  try {
    return {
      evalRtt: await repeat(n, 5, () => timed(() => child.eval('1+1'))),
      execTrueRtt: await repeat(n, 5, () => timed(() => execTrue(child))),
      cliExec: await repeat(n, 2, () => timed(() => cliTrue(home, child.id))),
    };
  } finally {
    await client.sandboxes.remove(child.id);
  }
}

async function execTrue(child: Sandbox): Promise<void> {
  const { exit_code } = await child.exec(['true']);
  if (exit_code !== 0) throw new Error(`true ended with code ${exit_code}`);
}

async function cliTrue(home: string, id: string): Promise<void> {
  await run(process.execPath, [CLI, 'exec', id, 'true'], { env: { ...process.env, FORKD_HOME: home } });
}
