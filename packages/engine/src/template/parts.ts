/** What the host makes ready for a build: kernel, initramfs, image. Each is kept by its content. */
import { ensureImage, ensureMerged, type Image } from '../guest/image.js';
import { ensureInitramfs, type Initramfs } from '../guest/initramfs.js';
import { ensureKernel, type GuestKernel } from '../guest/kernel.js';
import { ensureNpmSet } from '../guest/packages/npm.js';
import { ensurePipSet } from '../guest/packages/pip.js';
import type { PackageSet } from '../guest/packages/set.js';
import { pythonOf } from '../guest/packages/target.js';
import type { Rootfs } from '../guest/rootfs/rootfs.js';
import type { BuildOptions } from '../types.js';
import type { BuildContext } from './builder.js';
import type { HostFile } from './digest.js';
import type { TemplateSpec } from './schema.js';
import type { BuildSteps } from './steps.js';

const MiB = 1024 * 1024;

/** What the host has made ready for a build. */
export interface Parts {
  kernel: GuestKernel;
  initramfs: Initramfs;
  image: Image;
  sets: PackageSet[];
  hostFiles: ReadonlyMap<string, HostFile>;
}

/** Provides all that a machine is built from, from the cache where it is there. */
export async function prepareParts(
  steps: BuildSteps,
  context: BuildContext,
  spec: TemplateSpec,
  base: string | Rootfs,
  options: BuildOptions,
): Promise<Omit<Parts, 'hostFiles'>> {
  const { home, nativeDir } = context;
  const { signal } = options;
  const cached = (result: { cached: boolean }) => result.cached;
  const kernel = await steps.run(
    'kernel',
    "Provide the guest's kernel",
    ({ line }) => ensureKernel({ home, signal, onProgress: line }),
    { cached, detail: ({ version }) => version },
  );
  const initramfs = await steps.run(
    'initramfs',
    'Pack agent, modules and interpreters',
    () => ensureInitramfs({ home, nativeDir, kernel, signal }),
    { cached },
  );
  return { kernel, initramfs, ...(await prepareImage(steps, context, spec, base, options)) };
}

/** The base, then the packages of languages on top of it: each kept apart, so that a change of one leaves the others. */
async function prepareImage(
  steps: BuildSteps,
  { home }: BuildContext,
  spec: TemplateSpec,
  base: string | Rootfs,
  { signal, noCache = false }: BuildOptions,
): Promise<Pick<Parts, 'image' | 'sets'>> {
  const cached = (result: { cached: boolean }) => result.cached;
  const size = ({ bytes }: Image) => `${Math.ceil(bytes / MiB)} MiB`;
  const count = ({ lock }: PackageSet) => `${lock.length} packages`;
  const settings = (line: (text: string) => void) => ({ home, signal, noCache, onProgress: line });
  const { packages, pip, npm } = spec;
  const root = await steps.run(
    'image',
    `Make the image of ${brief([spec.rootfs ?? spec.base, ...packages])}`,
    ({ line }) => ensureImage({ base, packages, ...settings(line) }),
    { cached, detail: size },
  );
  const sets: PackageSet[] = [];
  if (pip.length > 0)
    sets.push(
      await steps.run(
        'pip',
        `Fetch ${brief(pip)} with pip`,
        async ({ line }) => ensurePipSet(pip, await pythonOf(root.path, signal), settings(line)),
        { cached, detail: count },
      ),
    );
  if (npm.length > 0)
    sets.push(
      await steps.run(
        'npm',
        `Fetch ${brief(npm)} with npm`,
        ({ line }) => ensureNpmSet(npm, settings(line)),
        {
          cached,
          detail: count,
        },
      ),
    );
  if (sets.length === 0) return { image: root, sets };
  const image = await steps.run(
    'packages',
    'Add the packages to the image',
    ({ line }) => ensureMerged(root, sets, settings(line)),
    { cached, detail: size },
  );
  return { image, sets };
}

function brief(names: readonly string[]): string {
  const text = names.join(', ');
  return text.length > 60 ? `${text.slice(0, 60)}...` : text;
}

/** What a manager's packages came out as. */
export function lockOf(manager: PackageSet['manager'], sets: readonly PackageSet[]): PackageSet['lock'] {
  return sets.find((set) => set.manager === manager)?.lock ?? [];
}
