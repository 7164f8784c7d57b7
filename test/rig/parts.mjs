/**
 * What the rig is made of: a kernel with kvm in it, a Debian that has QEMU, the project as it stands. Each is cached below
 * build/rig and made again when its inputs have changed.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { root } from '../../scripts/lib/paths.mjs';
import { Failure } from '../../scripts/lib/run.mjs';

/** Where the rig keeps its caches and its runs. */
export const rigDirectory = join(root, 'build', 'rig');

/** In the order in which they come: a PCI machine, hardware virtualisation as AMD has it, taps for guests' networks. */
const MODULES = ['virtio_pci', 'kvm', 'kvm_amd', 'tun'];

/** What Node and the tests need inside, besides what is in every Debian. */
const PACKAGES = [
  'busybox-static',
  'ca-certificates',
  'e2fsprogs',
  'iproute2',
  'kmod',
  'libstdc++6',
  'procps',
  'psmisc',
  'qemu-system-x86',
  'qemu-utils',
  'squashfs-tools',
  'strace',
  'util-linux',
];

/** Of the checkout: what runs, not what builds. */
const PROJECT = [
  'package.json',
  'vitest.config.ts',
  'tsconfig.base.json',
  'packages',
  'guest',
  'templates',
  'test',
  'scripts',
  'build/native',
  'build/parity.mjs',
  'node_modules',
];
const LEFT_OUT = [
  'test/rig/cache',
  'node_modules/@biomejs',
  'node_modules/.vite',
  'node_modules/.cache',
  'node_modules/typescript',
  'build/native/obj',
];

/**
 * Kernel, initramfs and root image.
 *
 * @param {(text: string) => void} say progress, for people
 * @returns {Promise<{kernel: string, kernelVersion: string, initramfs: string, image: string}>} absolute paths
 */
export async function machineParts(say) {
  const { ensureKernel } = await engine('guest/kernel.js');
  const { ensureImage } = await engine('guest/image.js');
  const { ensureInitramfs } = await engine('guest/initramfs.js');
  const home = join(rigDirectory, 'host');
  const kernel = await ensureKernel({ home, moreModules: MODULES, onProgress: say });
  const nativeDir = join(root, 'build/native');
  const initramfs = await ensureInitramfs({ home, nativeDir, kernel });
  const image = await ensureImage({
    home,
    base: `debian:${suite()}`,
    packages: PACKAGES,
    onProgress: say,
  });
  return {
    kernel: kernel.vmlinux ?? kernel.vmlinuz,
    kernelVersion: kernel.version,
    initramfs: initramfs.path,
    image: image.path,
  };
}

/** The host's own release where it is Debian: programs built on it find their libraries inside. */
function suite() {
  const text = readFileSync('/etc/os-release', 'utf8');
  if (!/^ID=debian$/m.test(text)) return 'bookworm';
  return /^VERSION_CODENAME=(\S+)/m.exec(text)?.[1] ?? 'bookworm';
}

/**
 * The state directory's caches that tests inside begin with: the rig has no network, and making them under two emulations
 * takes minutes.
 *
 * @param {(text: string) => void} say
 * @returns {Promise<string>} a state directory with nothing but caches
 */
export async function seedHome(say) {
  const { ensureKernel } = await engine('guest/kernel.js');
  const { ensureImage } = await engine('guest/image.js');
  const home = join(rigDirectory, 'seed');
  await ensureKernel({ home, onProgress: say });
  await ensureImage({ home, base: 'busybox', packages: [], onProgress: say });
  return home;
}

/**
 * Packs what runs inside: the checkout, Node, the seed, and Firecracker where `FIRECRACKER_BIN` names it (with the jailer
 * beside it).
 *
 * @param {(text: string) => void} say
 * @returns {Promise<string>} path of a squashfs
 */
export async function projectImage(say) {
  const seed = await seedHome(say);
  const programs = hostPrograms();
  const extras = join(rigDirectory, 'extras');
  const project = PROJECT.filter((name) => existsSync(join(root, name)));
  const digest = digestOf([
    ...project.map((name) => join(root, name)),
    join(seed, 'cache'),
    ...programs.map(({ path }) => path),
  ]);
  const file = join(rigDirectory, 'project.squashfs');
  const stamp = join(rigDirectory, 'project.digest');
  if (existsSync(file) && existsSync(stamp) && readFileSync(stamp, 'utf8') === digest) return file;
  say('packing the project');
  rmSync(extras, { recursive: true, force: true });
  mkdirSync(join(extras, 'rig/bin'), { recursive: true });
  for (const { name, path } of programs) copyFileSync(path, join(extras, 'rig/bin', name));
  const parts = [
    ...['-C', root, ...LEFT_OUT.map((name) => `--exclude=${name}`), ...project],
    ...['-C', extras, 'rig'],
    ...['--transform=s,^cache,rig/seed/cache,', '-C', seed, 'cache'],
  ];
  rmSync(`${file}.new`, { force: true });
  await pack(parts, `${file}.new`);
  renameSync(`${file}.new`, file);
  writeFileSync(stamp, digest);
  rmSync(extras, { recursive: true, force: true });
  return file;
}

/** Node as it runs here, and Firecracker with its jailer. */
function hostPrograms() {
  const programs = [{ name: 'node', path: process.execPath }];
  const firecracker = process.env.FIRECRACKER_BIN;
  if (!firecracker) return programs;
  if (!existsSync(firecracker))
    throw new Failure(
      `FIRECRACKER_BIN=${firecracker} is not there`,
      'name the binary of a release, or unset it',
    );
  programs.push({ name: 'firecracker', path: firecracker });
  const jailer = join(dirname(firecracker), 'jailer');
  if (existsSync(jailer)) programs.push({ name: 'jailer', path: jailer });
  return programs;
}

/** tar | sqfstar: no loop device, no mount. */
function pack(tarArguments, to) {
  return new Promise((resolve, reject) => {
    const options = ['-quiet', '-no-progress', '-comp', 'lz4', '-b', '128K', '-no-xattrs', to];
    const tar = spawn('tar', ['-c', '--owner=0', '--group=0', ...tarArguments], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const squash = spawn('sqfstar', options, { stdio: [tar.stdout, 'ignore', 'inherit'] });
    let open = 2;
    for (const [name, child] of [
      ['tar', tar],
      ['sqfstar', squash],
    ]) {
      child.on('error', (error) =>
        reject(new Failure(`cannot run ${name}: ${error.message}`, 'npm run setup')),
      );
      child.on('exit', (code) => {
        if (code !== 0) reject(new Failure(`${name} ended with ${code}`));
        open -= 1;
        if (open === 0) resolve();
      });
    }
  });
}

/** Changes when any file below does, by name, size and time of change. */
function digestOf(paths) {
  const hash = createHash('sha256').update(LEFT_OUT.join());
  const add = (path) => {
    if (LEFT_OUT.some((name) => path === join(root, name))) return;
    const facts = statSync(path, { throwIfNoEntry: false });
    if (!facts) return;
    if (!facts.isDirectory()) {
      hash.update(`${path}\0${facts.size}\0${facts.mtimeMs}\n`);
      return;
    }
    for (const entry of readdirSync(path, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1)))
      if (!entry.isSymbolicLink()) add(join(path, entry.name));
  };
  for (const path of paths) add(path);
  return hash.digest('hex');
}

/**
 * A module of the built engine: the rig makes its machine with the product's own parts.
 *
 * @param {string} name below packages/engine/dist
 */
export async function engine(name) {
  const path = join(root, 'packages/engine/dist', name);
  if (!existsSync(path)) throw new Failure(`${path} is not there`, 'npm run build');
  return await import(path);
}
