import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { openAgentSession } from '../agent/index.js';
import { deadline } from '../deadline.js';
import { QemuMachine } from '../machine/machine.js';
import {
  type ChildFiles,
  fillRunDirectory,
  makeRunDirectory,
  removeRunDirectory,
  type VmmUser,
} from '../machine/run-directory.js';
import { writeSandboxFile } from '../machine/sandbox-file.js';
import { childArgv, type MachineShape, vmmFiles } from '../qemu/argv.js';
import { type LoadSource, loadChild } from '../qemu/load.js';
import { orEnded, QemuVmm } from '../qemu/vmm.js';
import type { ShimAbilities } from '../shim/index.js';
import type { Manifest } from '../snapshot/index.js';
import type { ForkChild, ForkTimings, LogFunction } from '../types.js';
import { connectUnix } from '../unix-socket.js';

/** What all children of one snapshot share. */
export interface ChildSource extends LoadSource {
  manifest: Manifest;
  shape: MachineShape;
  links: ChildFiles;
}

/** What the host gives to every child. */
export interface ChildHost {
  runRoot: string;
  qemu: string;
  shimBinary: string;
  abilities: ShimAbilities;
  user: VmmUser | undefined;
  log: LogFunction;
}

/** How long one child may take from its start to its hello, ms; tens of them when all is well. */
const CHILD_MS = 60_000;

/**
 * Starts one child: a VMM of its own, the snapshot's memory and state in it, told who it is before anything in it runs.
 * Whatever fails, nothing of it is left.
 */
export async function startChild(
  source: ChildSource,
  host: ChildHost,
  child: ForkChild,
  signal?: AbortSignal,
): Promise<QemuMachine> {
  using limit = deadline(`the fork of ${child.id}`, CHILD_MS, signal);
  const start = performance.now();
  const dir = join(host.runRoot, child.id);
  const generation = randomBytes(16).toString('hex');
  await makeRunDirectory(dir, host.user);
  let vmm: QemuVmm | undefined;
  try {
    const { manifest } = source;
    await fillRunDirectory(dir, source.links, host.user);
    const facts = { id: child.id, snapshotId: manifest.id, generation, hostname: child.hostname };
    [vmm] = await Promise.all([startVmm(dir, source, host, limit.signal), writeSandboxFile(dir, facts)]);
    const spawnMs = performance.now() - start;
    const { graftMs, loadMs } = await loadChild(vmm, source, limit.signal);
    const before = performance.now();
    const session = await orEnded(resumeAs(vmm, child, generation, limit.signal), vmm.shim, limit.signal);
    const timings: ForkTimings = {
      spawnMs,
      graftMs,
      loadMs,
      helloMs: performance.now() - before,
      totalMs: performance.now() - start,
    };
    const { id, hostname } = child;
    return new QemuMachine({ id, vmm, manifest, generation, hostname, timings, session, log: host.log });
  } catch (error) {
    await vmm?.destroy();
    await removeRunDirectory(dir);
    throw error;
  }
}

function startVmm(dir: string, source: ChildSource, host: ChildHost, signal: AbortSignal): Promise<QemuVmm> {
  const { shimBinary, abilities, user } = host;
  return QemuVmm.start(
    { dir, argv: childArgv(host.qemu, source.shape), shimBinary, abilities, user },
    signal,
  );
}

/**
 * Lets a loaded child run and tells it who it is. All its processes but the agent are frozen until hello has thawed them.
 */
async function resumeAs(
  vmm: QemuVmm,
  child: ForkChild,
  generation: string,
  signal: AbortSignal,
): ReturnType<typeof openAgentSession> {
  const opening = openAgentSession({
    dial: (dialSignal) => connectUnix(join(vmm.dir, vmmFiles.agent), dialSignal),
    connectTimeoutMs: CHILD_MS,
  });
  opening.catch(() => {});
  await vmm.cont(signal);
  const session = await opening;
  try {
    await session.hello(
      {
        generation,
        entropy: randomBytes(64),
        wallClockNs: BigInt(Date.now()) * 1_000_000n,
        hostname: child.hostname,
        machineId: randomBytes(16).toString('hex'),
        env: child.env,
        metadata: child.metadata,
        thaw: { interpreters: true, user: true },
      },
      signal,
    );
    return session;
  } catch (error) {
    await session.close();
    throw error;
  }
}
