/** The guest agent built for the host: the real C code, served over a unix socket, without a machine around it. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { fileURLToPath } from 'node:url';

const built = fileURLToPath(new URL('../../build/native/forkd-agent-host', import.meta.url));
/** Path of the built agent. */
export const agentBinary = process.env.FORKD_AGENT_HOST || built;
/** False before `npm run build`: tests over the real agent are skipped then. */
export const agentIsBuilt = existsSync(agentBinary);

export interface AgentHost extends AsyncDisposable {
  /** Where the agent's `/` is. */
  root: string;
  socket: string;
  dial: () => Promise<Duplex>;
  /** What it wrote to stderr: the sanitizers' reports. */
  complaints: () => string;
}

export async function startAgentHost(): Promise<AgentHost> {
  const directory = await mkdtemp(join(tmpdir(), 'forkd-agent-'));
  const root = join(directory, 'root');
  const socket = join(directory, 'agent.sock');
  await mkdir(join(root, 'tmp'), { recursive: true });
  const child = spawn(agentBinary, ['--listen', socket, '--root', root], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let said = '';
  child.stderr.on('data', (chunk: Buffer) => {
    said += chunk.toString();
  });
  const exited = new Promise<void>((resolve) => child.once('close', () => resolve()));
  await listening(child, socket);
  return {
    root,
    socket,
    dial: () => dialUnix(socket),
    complaints: () => said,
    async [Symbol.asyncDispose]() {
      child.kill('SIGTERM');
      const stubborn = setTimeout(() => child.kill('SIGKILL'), 5000);
      await exited;
      clearTimeout(stubborn);
      await rm(directory, { recursive: true, force: true });
      if (/AddressSanitizer|runtime error|LeakSanitizer/.test(said))
        throw new Error(`the agent failed:\n${said}`);
    },
  };
}

export function dialUnix(path: string): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.once('connect', () => {
      socket.off('error', reject);
      resolve(socket);
    });
    socket.once('error', reject);
  });
}

/** The agent listens before it writes anything, so the first connection that is taken is the signal. */
async function listening(child: ChildProcess, socket: string): Promise<void> {
  const deadline = Date.now() + 10_000;
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the agent ended with ${child.exitCode}`);
    try {
      (await dialUnix(socket)).destroy();
      return;
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}
