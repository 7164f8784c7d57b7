import { chown, link } from 'node:fs/promises';
import { join } from 'node:path';
import { openAgentSession } from '../agent/index.js';
import { deadline } from '../deadline.js';
import { EngineError, messageOf } from '../errors.js';
import { writeFault } from '../host/disk-space.js';
import { handOver } from '../machine/run-directory.js';
import { bootFiles } from './boot-files.js';
import { orEnded } from './ended.js';
import { type BootedMachine, type BootSpec, captured, type Vmm, type VmmDriver } from './types.js';

/** How long a guest may take from power-on to its agent's first answer, ms: seconds on an idle host under tcg. */
export const BOOT_MS = 120_000;

/**
 * Boots a machine and opens a session with its agent.
 *
 * @throws EngineError vmm_failed, timeout; the message ends with what the console showed
 */
export async function bootMachine(driver: VmmDriver, spec: BootSpec): Promise<BootedMachine> {
  const timeoutMs = spec.timeoutMs ?? BOOT_MS;
  using limit = deadline('the boot of the guest', timeoutMs, spec.signal);
  await prepare(spec);
  const start = performance.now();
  const vmm = await driver.startBoot(spec, limit.signal);
  try {
    const session = await orEnded(
      openAgentSession({
        dial: (signal) => vmm.dialAgent(signal),
        connectTimeoutMs: timeoutMs,
        signal: limit.signal,
      }),
      vmm.shim,
      limit.signal,
    );
    const bootMs = performance.now() - start;
    return {
      session,
      bootMs,
      exited: vmm.shim.exited,
      consoleTail: () => vmm.console(),
      async capture() {
        await vmm.pause();
        try {
          await vmm.saveTemplate();
        } catch (error) {
          // QEMU says no more than that it could not write.
          throw await writeFault(error, 'the device state could not be saved', spec.workDir);
        }
        await vmm.destroy();
      },
      async [Symbol.asyncDispose]() {
        await session.close();
        await vmm.destroy();
      },
    };
  } catch (error) {
    await vmm.destroy();
    throw await withConsole(error, vmm);
  }
}

/** Puts what the VMM opens by name into its working directory: it may be another user, who can reach nothing else. */
async function prepare(spec: BootSpec): Promise<void> {
  const { workDir, user, kernel } = spec;
  await handOver(workDir, user);
  await Promise.all([
    // The ELF starts without unpacking itself first, which saves time under emulation and 16 MiB of room.
    link(kernel.vmlinux ?? kernel.vmlinuz, join(workDir, bootFiles.kernel)),
    link(spec.initrd, join(workDir, bootFiles.initrd)),
    link(spec.image, join(workDir, bootFiles.image)),
    user && chown(join(workDir, captured.disk), user.uid, user.gid),
  ]);
}

async function withConsole(error: unknown, vmm: Vmm): Promise<unknown> {
  const tail = (await vmm.console()).trim();
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
