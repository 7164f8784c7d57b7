/** The daemon of a home, seen from outside. */
import { connect } from 'node:net';
import { join } from 'node:path';
import { Forkd } from '@forkd/sdk';

/** Asks the daemon of `home` to end, and waits until it has let go of its socket. No daemon: nothing to do. */
export async function stopDaemon(home: string): Promise<void> {
  await using client = new Forkd({ home });
  let pid: number;
  try {
    ({ pid } = await client.daemon());
  } catch {
    return;
  }
  // The kernel closes this connection when the process is gone, at the latest.
  const connection = connect(join(home, 'forkd.sock'));
  const gone = new Promise<void>((resolve) => {
    connection.on('close', () => resolve());
    connection.on('error', () => undefined);
  });
  await new Promise((resolve) => connection.on('connect', resolve).on('close', resolve));
  await client.close();
  process.kill(pid, 'SIGTERM');
  connection.resume();
  await gone;
  await ended(pid);
}

/** Resolves when a process that is no child of ours has ended. `tail` watches it for us. */
async function ended(pid: number): Promise<void> {
  const { spawn } = await import('node:child_process');
  const watcher = spawn('tail', ['--pid', String(pid), '-s', '0.1', '-f', '/dev/null'], { stdio: 'ignore' });
  const deadline = setTimeout(() => watcher.kill(), 20_000);
  await new Promise((resolve) => watcher.on('exit', resolve));
  clearTimeout(deadline);
}
