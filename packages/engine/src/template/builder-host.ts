import { hostPin } from '../host/pin.js';
import { vmmUser } from '../host/user.js';
import { newId } from '../ids.js';
import type { ShimAbilities } from '../shim/index.js';
import { MANIFEST_FORMAT, type SnapshotStore } from '../snapshot/index.js';
import type { Accelerator } from '../types.js';
import { bootMachine } from '../vmm/boot.js';
import type { VmmDriver } from '../vmm/types.js';
import type { BuilderHost } from './builder.js';

export interface BuilderContext {
  driver: VmmDriver;
  store: SnapshotStore;
  shimBinary: string;
  abilities: ShimAbilities;
  accelerator: Accelerator;
}

/** What a template build needs of an engine: boot, capture, and the snapshot's manifest. */
export function builderHost(context: BuilderContext): BuilderHost {
  const { driver, store, shimBinary, abilities, accelerator } = context;
  const pin = () => hostPin(driver, accelerator, shimBinary);
  return {
    async pin() {
      // The rate is measured anew each time; it must not spoil the cache.
      return { ...(await pin()), tscKhz: null, commandLine: driver.commandLine(accelerator) };
    },
    async boot(spec) {
      const host = await pin();
      const { workDir, memoryBytes, vcpus, kernel, initrd, image, signal } = spec;
      return await bootMachine(driver, {
        workDir,
        shape: { accelerator, cpuModel: host.cpuModel, memoryBytes, vcpus },
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
      const machine = { ...(await pin()), kernel: kernel.version, kernelSha256: kernel.sha256 };
      const made = {
        format: MANIFEST_FORMAT,
        id: newId('sn'),
        createdAt: Date.now(),
        template,
        machine,
      } as const;
      return await store.commit(workDir, { ...made, memoryBytes, vcpus, diskBytes, image }, build);
    },
  };
}
