import { join } from 'node:path';
import { orAborted } from '../deadline.js';
import { EngineError } from '../errors.js';
import type { VmmUser } from '../machine/run-directory.js';
import { type Shim, type ShimAbilities, startShim, type VmmExit } from '../shim/index.js';
import { vmmFiles, vmmSockets } from './argv.js';
import { Qmp } from './qmp.js';

/** How a VMM is started. */
export interface VmmSpec {
  /** Absolute path of its working directory. */
  dir: string;
  argv: readonly string[];
  shimBinary: string;
  abilities: ShimAbilities;
  user: VmmUser | undefined;
}

/** A QEMU process with its shim and a monitor. */
export class QemuVmm implements AsyncDisposable {
  /** Its working directory; renamed when a sandbox gets it. */
  dir: string;
  readonly shim: Shim;
  readonly qmp: Qmp;

  constructor(dir: string, shim: Shim, qmp: Qmp) {
    this.dir = dir;
    this.shim = shim;
    this.qmp = qmp;
  }

  /**
   * Starts shim and VMM and waits for the monitor's greeting.
   *
   * @throws EngineError vmm_failed with the VMM's last words when it ends instead
   */
  static async start(spec: VmmSpec, signal: AbortSignal): Promise<QemuVmm> {
    const shim = await startShim(
      {
        dir: spec.dir,
        argv: spec.argv,
        sockets: vmmSockets,
        ...(spec.user && { uid: spec.user.uid, gid: spec.user.gid }),
      },
      { binary: spec.shimBinary, signal, abilities: spec.abilities },
    );
    try {
      const qmp = await orEnded(Qmp.connect(join(spec.dir, vmmFiles.monitor), signal), shim, signal);
      return new QemuVmm(spec.dir, shim, qmp);
    } catch (error) {
      await shim.kill();
      await shim.end();
      throw error;
    }
  }

  /** Stops the vCPUs. */
  async stop(signal?: AbortSignal): Promise<void> {
    await this.qmp.run('stop', {}, signal ? { signal } : {});
  }

  /** Lets the vCPUs run. */
  async cont(signal?: AbortSignal): Promise<void> {
    await this.qmp.run('cont', {}, signal ? { signal } : {});
  }

  /** Writes the device state to `filename` in the working directory. The machine must be stopped, and stays so. */
  async saveState(filename: string, signal?: AbortSignal): Promise<void> {
    // `live: true`, the default, inactivates every disk, and a second save then aborts QEMU (design, section 3).
    await this.qmp.run('xen-save-devices-state', { filename, live: false }, signal ? { signal } : {});
  }

  /** Kills the VMM and ends its shim. */
  async destroy(): Promise<VmmExit> {
    this.qmp.close();
    const exit = await this.shim.kill();
    await this.shim.end();
    return exit;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.destroy();
  }
}

/** Waits for `promise`; if the VMM ends first, fails with what it said. */
export async function orEnded<T>(promise: Promise<T>, shim: Shim, signal: AbortSignal): Promise<T> {
  promise.catch(() => {});
  const ended = shim.exited.then((exit): never => {
    throw new EngineError('vmm_failed', `QEMU ended ${describeExit(exit)}`, { details: { exit } });
  });
  ended.catch(() => {});
  try {
    return await orAborted(Promise.race([promise, ended]), signal);
  } catch (error) {
    if (signal.aborted) throw error;
    // The connection may break a moment before the shim has told of the end, which says more.
    const exit = await Promise.race([
      shim.exited,
      new Promise<null>((r) => setTimeout(r, 200, null).unref()),
    ]);
    if (exit === null) throw error;
    throw new EngineError('vmm_failed', `QEMU ended ${describeExit(exit)}`, {
      cause: error,
      details: { exit },
    });
  }
}

/** How a VMM ended, for people. */
export function describeExit(exit: VmmExit): string {
  const words = exit.lastWords.trim();
  const said = words === '' ? '' : `; it said: ${words.slice(-800)}`;
  switch (exit.kind) {
    case 'exited':
      return `with code ${exit.code}${said}`;
    case 'signaled':
      return `by ${exit.signal}${said}`;
    case 'unknown':
      return `for a reason that nobody saw${said}`;
  }
}
