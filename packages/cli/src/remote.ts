/** Joins a command in a sandbox to our own streams and signals. */
import { pipeline } from 'node:stream/promises';
import type { ExecExit, RemoteProcess } from '@forkd/sdk';

/** Exit codes of our own for signals that end us, as shells have them. */
const deaths = { SIGTERM: 143, SIGHUP: 129 } as const;

/**
 * Carries output, input and ctrl-C of a command until it has ended.
 *
 * The first ctrl-C is sent to the command; at the second, and at SIGTERM and SIGHUP, we go away, and the daemon kills the command.
 *
 * @param open starts the command; its signal is aborted when we go away
 * @returns exit code of the command, or of our own death
 */
export async function follow(open: (signal: AbortSignal) => Promise<RemoteProcess>): Promise<number> {
  const away = new AbortController();
  let remote: RemoteProcess | undefined;
  let death = 0;
  let interrupts = 0;
  const interrupt = () => {
    interrupts += 1;
    if (remote !== undefined && interrupts === 1) remote.signal('SIGINT');
    else leave(130);
  };
  const leave = (code: number) => {
    death = code;
    away.abort();
  };
  const die = (name: NodeJS.Signals) => leave(deaths[name as keyof typeof deaths]);
  process.on('SIGINT', interrupt).on('SIGTERM', die).on('SIGHUP', die);
  try {
    remote = await open(away.signal);
    const { exitCode } = await carry(remote);
    return exitCode;
  } catch (error) {
    if (death !== 0) return death;
    throw error;
  } finally {
    process.off('SIGINT', interrupt).off('SIGTERM', die).off('SIGHUP', die);
  }
}

/** Carries streams until the command has ended and its last byte is written. */
export async function carry(remote: RemoteProcess): Promise<ExecExit> {
  const { stdin } = remote;
  if (stdin !== null) {
    // A command that ends before it has read all its input is no error.
    stdin.on('error', () => undefined);
    process.stdin.on('error', () => stdin.end());
    process.stdin.pipe(stdin);
  }
  try {
    const [exit] = await Promise.all([
      remote.wait(),
      pipeline(remote.stdout, process.stdout, { end: false }),
      remote.stderr && pipeline(remote.stderr, process.stderr, { end: false }),
    ]);
    return exit;
  } finally {
    if (stdin !== null) {
      process.stdin.unpipe(stdin);
      // An open stdin would keep this process alive. A terminal's owner still has to put it back into its mode.
      if (process.stdin.isTTY) process.stdin.pause();
      else process.stdin.destroy();
    }
  }
}

/** All of our stdin. */
export async function readInput(): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of process.stdin) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}
