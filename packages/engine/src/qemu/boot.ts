import { chown, link } from 'node:fs/promises';
import { join } from 'node:path';
import { type AgentSession, openAgentSession } from '../agent/index.js';
import { deadline } from '../deadline.js';
import { EngineError, messageOf } from '../errors.js';
import { handOver, type VmmUser } from '../machine/run-directory.js';
import { readTail } from '../read-tail.js';
import type { ShimAbilities, VmmExit } from '../shim/index.js';
import { connectUnix } from '../unix-socket.js';
import { bootArgv, type MachineShape, vmmFiles } from './argv.js';
import { orEnded, QemuVmm } from './vmm.js';

/** How long a guest may take from power-on to its agent's first answer, ms: seconds on an idle host under tcg. */
export const BOOT_MS = 120_000;

/** What a template's machine is booted from. */
export interface BootSpec {
  /** Directory of its own; memory, state and console come to lie in it. `disk` lies there already. */
  workDir: string;
  shape: MachineShape;
  qemu: string;
  shimBinary: string;
  abilities: ShimAbilities;
  user: VmmUser | undefined;
  /** Absolute paths. */
  kernel: string;
  initrd: string;
  image: string;
  tscKhz: number;
  signal?: AbortSignal;
  timeoutMs?: number;
}

/** A machine that was booted to be captured. */
export interface BootedMachine extends AsyncDisposable {
  readonly session: AgentSession;
  readonly exited: Promise<VmmExit>;
  readonly bootMs: number;
  /** Stops the vCPUs, saves the device state to `state` in the work directory, kills the VMM. Its session must be closed. */
  capture(): Promise<void>;
  consoleTail(): Promise<string>;
}

/**
 * Boots a machine and opens a session with its agent.
 *
 * @throws EngineError vmm_failed, timeout; the message ends with what the console showed
 */
export async function bootMachine(spec: BootSpec): Promise<BootedMachine> {
  await prepare(spec);
  using limit = deadline('the boot of the guest', spec.timeoutMs ?? BOOT_MS, spec.signal);
  const start = performance.now();
  const vmm = await QemuVmm.start(
    {
      dir: spec.workDir,
      argv: bootArgv(spec.qemu, spec.shape, { kernel: 'kernel', initrd: 'initrd', tscKhz: spec.tscKhz }),
      shimBinary: spec.shimBinary,
      abilities: spec.abilities,
      user: spec.user,
    },
    limit.signal,
  );
  try {
    const session = await orEnded(
      openAgentSession({
        dial: (signal) => connectUnix(join(spec.workDir, vmmFiles.agent), signal),
        connectTimeoutMs: spec.timeoutMs ?? BOOT_MS,
        signal: limit.signal,
      }),
      vmm.shim,
      limit.signal,
    );
    return booted(vmm, session, performance.now() - start);
  } catch (error) {
    await vmm.destroy();
    throw await withConsole(error, spec.workDir);
  }
}

function booted(vmm: QemuVmm, session: AgentSession, bootMs: number): BootedMachine {
  const destroy = async (): Promise<void> => {
    await session.close();
    await vmm.destroy();
  };
  return {
    session,
    bootMs,
    exited: vmm.shim.exited,
    consoleTail: () => readTail(join(vmm.dir, vmmFiles.console)),
    async capture() {
      await vmm.stop();
      await vmm.saveState(vmmFiles.state);
      await vmm.destroy();
    },
    [Symbol.asyncDispose]: destroy,
  };
}

/** Puts what the VMM opens by name into its working directory: it may be another user, who can reach nothing else. */
async function prepare(spec: BootSpec): Promise<void> {
  await handOver(spec.workDir, spec.user);
  await Promise.all([
    link(spec.kernel, join(spec.workDir, 'kernel')),
    link(spec.initrd, join(spec.workDir, 'initrd')),
    link(spec.image, join(spec.workDir, vmmFiles.image)),
    spec.user && chown(join(spec.workDir, vmmFiles.disk), spec.user.uid, spec.user.gid),
  ]);
}

async function withConsole(error: unknown, workDir: string): Promise<unknown> {
  const tail = (await readTail(join(workDir, vmmFiles.console))).trim();
  if (!(error instanceof EngineError) || tail === '') return error;
  return new EngineError(
    error.code,
    `${messageOf(error)}; the console of the guest ended with: ${tail.slice(-800)}`,
    {
      cause: error,
      ...(error.details && { details: error.details }),
    },
  );
}
