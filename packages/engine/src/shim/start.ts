import { basename } from 'node:path';
import { shimFrames } from '@forkd/wire';
import { recovery } from './adopt.js';
import { ShimClient } from './client.js';
import { launch } from './launch.js';
import { encodeStart } from './protocol.js';
import type { Shim, ShimSpec, StartShimOptions } from './types.js';

/**
 * Starts a shim, and through it a VMM. Both outlive the caller. Resolves when the VMM's program has been executed; its sockets listen by then.
 *
 * @throws EngineError vmm_failed (details.errno) when the program cannot be executed, host_unfit when the shim cannot, timeout
 * @example
 * const shim = await startShim({ dir, argv: ['/usr/bin/qemu-system-x86_64', ...], sockets: ['qmp.sock'] }, { binary });
 */
export async function startShim(spec: ShimSpec, options: StartShimOptions): Promise<Shim> {
  options.signal?.throwIfAborted();
  const mapsAllowed = spec.filterAllowsMaps ?? basename(spec.argv[0] ?? '').startsWith('qemu-system-');
  const payload = encodeStart(spec, mapsAllowed, options.abilities);
  const { connection, info } = await launch('--start', spec.dir, shimFrames.START, payload, options);
  return new ShimClient(connection, info, spec.dir, recovery(options), options.mapped);
}

/**
 * Starts a shim with its VMM, and does what makes it usable. Whatever fails, neither is left.
 *
 * @throws as `startShim`, or what `reach` throws
 */
export async function startShimAnd<T>(
  spec: ShimSpec,
  options: StartShimOptions,
  reach: (shim: Shim) => Promise<T>,
): Promise<T> {
  const shim = await startShim(spec, options);
  try {
    return await reach(shim);
  } catch (error) {
    await shim.kill();
    await shim.end();
    throw error;
  }
}
