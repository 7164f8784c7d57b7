import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { childArguments, emptyOverlay } from '@forkd/engine';
import { repeat, type Series } from '../statistics.js';

const MiB = 1024 * 1024;

/** R0: a child's VMM, from the start of its process to its monitor's greeting. No shim, no daemon, no snapshot. */
export async function vmmSpawn(
  n: number,
  memoryMib: number,
  qemu: string,
  accelerator: 'kvm' | 'tcg',
): Promise<Series> {
  const dir = await mkdtemp(join(tmpdir(), 'forkd-bench-'));
  try {
    await writeFile(join(dir, 'overlay.qcow2'), emptyOverlay(64 * MiB));
    await writeFile(join(dir, 'image'), Buffer.alloc(MiB));
    const cpuModel = accelerator === 'tcg' ? 'max' : 'host,migratable=on';
    const argv = childArguments(qemu, { accelerator, cpuModel, memoryBytes: memoryMib * MiB, vcpus: 1 });
    return await repeat(n, 3, () => spawnOnce(dir, argv));
  } finally {
    await rm(dir, { recursive: true });
  }
}

/** The monitors and the agent's stream, which are descriptors in the product, go to stdio and to files here. */
async function spawnOnce(dir: string, argv: readonly string[]): Promise<number> {
  const args = argv
    .slice(1)
    .map((arg) => arg.replace(/^socket,id=monitor,.*/, 'stdio,id=monitor,signal=off'))
    .map((arg) => arg.replace(/^socket,id=(\w+),.*/, 'null,id=$1'));
  const start = performance.now();
  const child = spawn(argv[0]!, args, { cwd: dir, stdio: ['pipe', 'pipe', 'inherit'] });
  try {
    const signal = AbortSignal.timeout(20_000);
    const [greeting] = (await Promise.race([
      once(child.stdout, 'data', { signal }),
      once(child, 'exit', { signal }).then(([code]) => [`QEMU ended with code ${code}`]),
    ])) as [unknown];
    const ms = performance.now() - start;
    if (!String(greeting).includes('"QMP"')) throw new Error(String(greeting));
    return ms;
  } finally {
    child.kill('SIGKILL');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  }
}
