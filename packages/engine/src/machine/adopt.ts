import { readFile } from 'node:fs/promises';
import { setTimeout } from 'node:timers/promises';
import { EngineError } from '../errors.js';
import { adoptShim, type Shim, type VmmExit } from '../shim/index.js';
import type { SnapshotStore } from '../snapshot/index.js';
import type { ForkTimings, LogFunction } from '../types.js';
import { driverOf } from '../vmm/drivers.js';
import { describeExit } from '../vmm/ended.js';
import { SandboxMachine } from './machine.js';
import { removeRunDirectory, type VmmUser } from './run-directory.js';
import { ramRange, readSandboxFile } from './sandbox-file.js';

export interface AdoptionSpec {
  dir: string;
  id: string;
  shimBinary: string;
  log: LogFunction;
}

const noTimings: ForkTimings = { spawnMs: 0, graftMs: 0, loadMs: 0, helloMs: 0, totalMs: 0 };

/** How long a shim that was greeted may take to tell of its VMM's end, ms. */
const EXIT_MS = 200;

/**
 * Takes over a sandbox that an earlier daemon left running. One that was left paused (a daemon that died amid its work) is resumed.
 *
 * @throws EngineError sandbox_not_found, sandbox_exited (details.exit), guest_unreachable
 */
export async function adoptMachine(
  spec: AdoptionSpec,
  store: SnapshotStore,
  signal: AbortSignal,
): Promise<SandboxMachine> {
  const facts = await readSandboxFile(spec.dir, spec.id);
  const manifest = await store.manifest(facts.snapshotId);
  const driver = driverOf(manifest.machine.engine);
  // A snapshot that is damaged by now explains nothing; its sandbox may run on all the same.
  const mapped = (await store.chain(manifest).catch(() => null))?.files ?? [];
  const shim = await adoptShim(spec.dir, { binary: spec.shimBinary, signal, mapped });
  try {
    const vmm = await driver.adopt(spec.dir, shim, signal);
    const status = await vmm.status(signal);
    if (status === 'paused') await vmm.resume(signal);
    else if (status !== 'running' && status !== 'ended') throw halfMade(spec.id, status);
    const machine = new SandboxMachine({
      id: spec.id,
      vmm,
      manifest,
      generation: facts.generation,
      env: facts.env,
      hostname: facts.hostname,
      timings: noTimings,
      ram: facts.ram.map(ramRange),
      user: await userOf(shim.vmmPid),
      store,
      log: spec.log,
    });
    if (status === 'ended') await machine.concludeShutdown();
    return machine;
  } catch (error) {
    const exit = await Promise.race([shim.exited, setTimeout(EXIT_MS, null, { ref: false })]);
    shim.detach();
    throw exit === null ? error : ended(spec.id, exit, error);
  }
}

/** Who a VMM runs as, when that is not us. Its files do not tell: those that belong to a branch as well are ours. */
async function userOf(pid: number): Promise<VmmUser | undefined> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  const [, uid, gid] = /^Uid:\t(\d+)[\s\S]*?^Gid:\t(\d+)/m.exec(status)!;
  return Number(uid) === process.getuid!() ? undefined : { uid: Number(uid), gid: Number(gid) };
}

function ended(id: string, exit: VmmExit, cause: unknown): EngineError {
  return new EngineError('sandbox_exited', `sandbox ${id} has ended: its VMM ended ${describeExit(exit)}`, {
    remedy: `Remove it with "forkd rm ${id}" and fork another.`,
    details: { exit },
    cause,
  });
}

function halfMade(id: string, status: string): EngineError {
  return new EngineError('sandbox_exited', `sandbox ${id} cannot be adopted: its VMM is in state ${status}`, {
    remedy: `Remove it: forkd rm ${id}`,
    details: { status },
  });
}

/** Ends whatever is left of a sandbox and removes its directory. Fine when nothing is. */
export async function sweepSandbox(dir: string, shimBinary: string): Promise<void> {
  let shim: Shim | undefined;
  try {
    shim = await adoptShim(dir, { binary: shimBinary });
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'sandbox_exited') throw error;
  }
  if (shim) {
    await shim.kill();
    await shim.end();
  }
  await removeRunDirectory(dir);
}
