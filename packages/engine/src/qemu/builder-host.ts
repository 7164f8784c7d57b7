import { hostPin } from '../host/pin.js';
import { vmmUser } from '../host/user.js';
import { newId } from '../ids.js';
import type { ShimAbilities } from '../shim/index.js';
import { MANIFEST_FORMAT, type SnapshotStore } from '../snapshot/index.js';
import type { BuilderHost } from '../template/builder.js';
import type { Accelerator } from '../types.js';
import { findQemu } from './binary.js';
import { bootMachine } from './boot.js';

export interface BuilderContext {
  store: SnapshotStore;
  shimBinary: string;
  abilities: ShimAbilities;
  accelerator: Accelerator;
}

/** What a template build needs of QEMU: boot, capture, and the snapshot's manifest. */
export function builderHost(context: BuilderContext): BuilderHost {
  const { store, shimBinary, abilities, accelerator } = context;
  const pin = () => hostPin(accelerator, shimBinary);
  return {
    async pin() {
      return { ...(await pin()), tscKhz: null }; // The rate is measured anew each time; it must not spoil the cache.
    },
    async boot(spec) {
      const [qemu, host] = await Promise.all([findQemu(), pin()]);
      const { workDir, memoryBytes, vcpus, kernel, initrd, image, signal } = spec;
      return await bootMachine({
        workDir,
        shape: { accelerator, cpuModel: host.cpuModel, memoryBytes, vcpus },
        qemu: qemu.path,
        shimBinary,
        abilities,
        user: vmmUser(abilities, accelerator),
        kernel,
        initrd,
        image,
        tscKhz: host.tscKhz,
        ...(signal && { signal }),
      });
    },
    async commit(spec) {
      const { workDir, template, image, kernel, memoryBytes, vcpus, diskBytes, build } = spec;
      return await store.commit(workDir, {
        format: MANIFEST_FORMAT,
        id: newId('sn'),
        createdAt: Date.now(),
        template,
        machine: { ...(await pin()), kernel: kernel.version, kernelSha256: kernel.sha256 },
        memoryBytes,
        vcpus,
        diskBytes,
        image,
        build,
      });
    },
  };
}
