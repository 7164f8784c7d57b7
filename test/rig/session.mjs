/** Commands in a rig that is up, by the agent that is its init. */
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Failure } from '../../scripts/lib/run.mjs';
import { engine } from './parts.mjs';

/** Environment of commands in the rig. */
const environment = {
  HOME: '/root',
  FORKD_HOME: '/w/home',
  /** A boot that takes a second on hardware takes a minute here. */
  FORKD_PROOF_SECS: '600',
  /** Tests begin their state directories with these caches. */
  FORKD_TEST_SEED: '/forkd/rig/seed',
  TMPDIR: '/w/t',
  FORKD_TEST_OWN_DISK: '1',
  /** Hashes by plain integer instructions: those of vectors are calls out of QEMU's translated code, and take three times as long. */
  OPENSSL_ia32cap: '0:0',
  NO_COLOR: '1',
};

/**
 * A session with the rig's agent. One at a time.
 *
 * @param {string} dir
 * @param {number} timeoutMs
 * @param {AbortSignal} [signal]
 */
export async function connectRig(dir, timeoutMs, signal) {
  const { openAgentSession } = await engine('index.js');
  const { connectUnix } = await engine('unix-socket.js');
  return await openAgentSession({
    dial: (dialSignal) => connectUnix(join(dir, 'agent.sock'), dialSignal),
    connectTimeoutMs: timeoutMs,
    // A machine that emulates two guests may leave its agent waiting for long.
    reconnectTimeoutMs: 60_000,
    keepalive: { idleMs: 60_000, answerMs: 120_000 },
    ...(signal && { signal }),
  });
}

/**
 * Runs a command in a rig that is up.
 *
 * @param {string} dir
 * @param {readonly string[]} command
 * @param {object} options
 * @param {boolean} [options.stdin] our stdin is its
 * @param {boolean} [options.terminal] it has a terminal, which is ours
 * @param {import('node:stream').Readable} [options.input] its stdin
 * @param {(line: string) => void} [options.onLine] takes its output line by line; else it goes to our stdout
 * @param {AbortSignal} [options.signal] ends the session: the machine is gone
 * @returns {Promise<number>} its exit code; 128 + n for death by a signal
 */
export async function runIn(dir, command, options) {
  if (!existsSync(join(dir, 'agent.sock'))) throw new Failure('no rig is kept', 'node test/rig/run.mjs --up');
  const session = await connectRig(dir, 30_000, options.signal);
  try {
    return await runWith(session, command, options);
  } finally {
    await session.close();
  }
}

/**
 * Runs a command in a session.
 *
 * @param {Pick<import('../../packages/engine/src/agent/types.ts').AgentSession, 'spawn'>} session
 * @param {readonly string[]} command
 * @param {Parameters<typeof runIn>[2]} options
 * @returns {Promise<number>} as of {@link runIn}; rejects where the session ends before the command
 */
export async function runWith(session, command, options) {
  const input = options.input ?? (options.stdin || options.terminal ? process.stdin : null);
  const { columns = 80, rows = 24 } = process.stdout;
  const child = await session.spawn({
    command: [...command],
    cwd: '/forkd',
    env: { ...environment, ...passedOn() },
    stdin: input ? 'pipe' : 'none',
    ...(options.terminal && { pty: { rows, cols: columns } }),
  });
  const pass = (signal) => child.signal(signal, { all: true }).catch(() => {});
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, pass);
  if (options.terminal && process.stdin.isTTY) process.stdin.setRawMode(true);
  if (input) input.pipe(child.stdin);
  child.stdin?.on('error', () => {});
  const told = passOutput(child.stdout, options.onLine);
  told.catch(() => {}); // A session that is lost ends the output and the wait: the wait tells of it.
  child.stderr?.pipe(process.stderr, { end: false });
  try {
    const outcome = await child.wait();
    await told;
    await child.release();
    return exitCode(outcome);
  } finally {
    for (const signal of ['SIGINT', 'SIGTERM']) process.off(signal, pass);
    if (options.terminal && process.stdin.isTTY) process.stdin.setRawMode(false);
    if (input === process.stdin) process.stdin.destroy();
  }
}

/** Resolves when all that was to be passed line by line has been. */
async function passOutput(output, onLine) {
  if (!onLine) {
    output.pipe(process.stdout, { end: false });
    return;
  }
  const lines = createInterface({ input: output });
  lines.on('line', onLine);
  await once(lines, 'close');
}

/** Settings of tests and of forkd that are no paths of this host. */
function passedOn() {
  const names = Object.keys(process.env).filter((name) =>
    /^(FORKD_(TEST_|ENGINE|ACCELERATOR|DEBUG)|CI$)/.test(name),
  );
  return Object.fromEntries(names.map((name) => [name, process.env[name]]));
}

function exitCode(outcome) {
  switch (outcome.kind) {
    case 'exited':
      return outcome.code;
    case 'signaled':
      return 128 + outcome.signal;
    default:
      console.error(`rig: the command ended by ${outcome.kind}`);
      return 1;
  }
}
