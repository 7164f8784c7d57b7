import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { VmmUser } from '../machine/run-directory.js';
import { readTail } from '../read-tail.js';
import { type MappedFile, type PauseScript, type Shim, startShimAnd, type VmmExit } from '../shim/index.js';
import { connectUnix } from '../unix-socket.js';
import { orEnded } from '../vmm/ended.js';
import {
  captured,
  type Loaded,
  type LoadSource,
  type PauseClock,
  type PreparedDisk,
  type Vmm,
  type VmmDisks,
  type VmmHost,
  type VmmState,
} from '../vmm/types.js';
import { CONSOLE_BYTES, vmmFiles, vmmSockets } from './argv.js';
import { linkDisks } from './disk.js';
import { loadChild } from './load.js';
import { Overlays } from './overlays.js';
import { Qmp, type QmpEvent } from './qmp.js';

/** How a QEMU is started. */
export interface QemuSpec extends Omit<VmmHost, 'binary'> {
  /** Absolute path of its working directory. */
  dir: string;
  argv: readonly string[];
  /** Files that it maps as guest memory by itself. */
  mapped?: readonly MappedFile[];
  /** A template's console goes to a file, a child's to a ring that QEMU holds. */
  console: 'file' | 'ring';
}

/** What the shim sends to its own monitor when the daemon is gone, or late. */
const recipe = [JSON.stringify({ execute: 'qmp_capabilities' }), JSON.stringify({ execute: 'cont' })];

/** QEMU's word for a guest that has shut down, and whose VMM waits for somebody to read its last words. */
const GUEST_ENDED = 'shutdown';

/** A QEMU process with its shim and a monitor. */
export class QemuVmm implements Vmm {
  readonly engine = 'qemu';
  readonly shim: Shim;
  readonly qmp: Qmp;
  readonly guestEnded: Promise<void>;
  readonly resumeRecipe = { socket: vmmFiles.shimMonitor, lines: recipe };
  readonly #consoleKind: QemuSpec['console'];
  #dir: string;
  #console = '';

  constructor(dir: string, shim: Shim, qmp: Qmp, consoleKind: QemuSpec['console']) {
    this.#dir = dir;
    this.shim = shim;
    this.qmp = qmp;
    this.#consoleKind = consoleKind;
    this.guestEnded = qmp
      .event((event) => event.event === 'SHUTDOWN', new AbortController().signal)
      .then(() => {});
    this.guestEnded.catch(() => {}); // Not everybody waits for it.
  }

  /**
   * Starts shim and VMM and waits for the monitor's greeting.
   *
   * @throws EngineError vmm_failed with the VMM's last words when it ends instead
   */
  static async start(spec: QemuSpec, signal: AbortSignal): Promise<QemuVmm> {
    const { dir, argv, user, shimBinary: binary, abilities, mapped } = spec;
    return await startShimAnd(
      { dir, argv, sockets: vmmSockets, ...user },
      { binary, signal, abilities, ...(mapped && { mapped }) },
      async (shim) => {
        const qmp = await orEnded(Qmp.connect(join(dir, vmmFiles.monitor), signal), shim, signal);
        return new QemuVmm(dir, shim, qmp, spec.console);
      },
    );
  }

  get dir(): string {
    return this.#dir;
  }

  moved(dir: string): void {
    this.#dir = dir;
    this.shim.moved(dir);
  }

  async load(source: LoadSource, signal: AbortSignal): Promise<Loaded> {
    await linkDisks(this.#dir, source.disks);
    return await loadChild(this, source, signal);
  }

  async pause(signal?: AbortSignal): Promise<void> {
    await this.qmp.run('stop', {}, signal ? { signal } : {});
  }

  async resume(signal?: AbortSignal): Promise<void> {
    await this.qmp.run('cont', {}, signal ? { signal } : {});
  }

  async status(signal?: AbortSignal): Promise<VmmState> {
    const { status } = await this.qmp.run<{ status: string }>('query-status', {}, signal ? { signal } : {});
    return status === GUEST_ENDED ? 'ended' : status;
  }

  pauseScript({ below, node }: PreparedDisk, stateFile: string): Omit<PauseScript, 'deadlineMs'> {
    const line = (execute: string, args: Record<string, unknown> = {}): string =>
      JSON.stringify({ execute, arguments: args });
    return {
      socket: vmmFiles.shimMonitor,
      before: [
        line('stop'),
        line('blockdev-snapshot', { node: below, overlay: node }),
        line('xen-save-devices-state', stateArguments(stateFile)),
      ],
      after: [line('cont')],
    };
  }

  /** A template's memory is a file from the start. */
  async saveTemplate(signal?: AbortSignal): Promise<void> {
    await this.qmp.run('xen-save-devices-state', stateArguments(captured.state), signal ? { signal } : {});
  }

  /** By QEMU's own clock. */
  clock(signal: AbortSignal): PauseClock {
    const stopped = this.qmp.event((event) => event.event === 'STOP', signal);
    const resumed = this.qmp.event((event) => event.event === 'RESUME', signal);
    for (const promise of [stopped, resumed]) promise.catch(() => {}); // Waited for below, or told by what failed before.
    return { ms: async () => (timeOf(await resumed) - timeOf(await stopped)) / 1000 };
  }

  /** QEMU has said of each step whether it was done. */
  checkPause(): Promise<void> {
    return Promise.resolve();
  }

  disks(user: VmmUser | undefined): VmmDisks {
    return new Overlays(this, user);
  }

  dialAgent(signal: AbortSignal): Promise<Duplex> {
    return connectUnix(join(this.#dir, vmmFiles.agent), signal);
  }

  async console(): Promise<string> {
    if (this.#consoleKind === 'file') return await readTail(join(this.#dir, vmmFiles.console));
    const encoded = await this.qmp
      .run<string>('ringbuf-read', { device: 'console', size: CONSOLE_BYTES, format: 'base64' })
      .catch(() => ''); // A VMM that has ended keeps what was read before.
    this.#console = (this.#console + Buffer.from(encoded, 'base64').toString('utf8')).slice(-CONSOLE_BYTES);
    return this.#console;
  }

  /** The shim maps the base by the name that it has as a snapshot's. */
  baseName(snapshotId: string): string {
    return `/snapshots/${snapshotId}/memory`;
  }

  async quit(timeoutMs: number): Promise<void> {
    await this.qmp.run('quit', {}, { timeoutMs }).catch(() => {});
  }

  detach(): void {
    this.qmp.close();
    this.shim.detach();
  }

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

/** `live: true`, the default, inactivates every disk, and a second save then aborts QEMU (design, section 3). */
function stateArguments(filename: string): Record<string, unknown> {
  return { filename, live: false };
}

/** Microseconds. */
function timeOf(event: QmpEvent): number {
  const { seconds, microseconds } = event.timestamp ?? { seconds: 0, microseconds: 0 };
  return seconds * 1e6 + microseconds;
}
