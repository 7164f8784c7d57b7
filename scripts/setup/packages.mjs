/** The packages of the distribution that forkd needs, and which of them are missing. */
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { ask } from '../lib/run.mjs';

/** Package of Debian and Ubuntu, and a program that shows its presence on other distributions. */
const needed = [
  { name: 'qemu-system-x86', program: 'qemu-system-x86_64' },
  { name: 'qemu-utils', program: 'qemu-img' },
  { name: 'mmdebstrap', program: 'mmdebstrap' },
  { name: 'squashfs-tools', program: 'sqfstar' },
  { name: 'e2fsprogs', program: 'mkfs.ext4' },
  { name: 'musl-tools', program: 'musl-gcc' },
  { name: 'busybox-static', program: 'busybox' },
  { name: 'gcc', program: 'gcc' },
  { name: 'libc6-dev', program: null },
  // The driver of warm Pythons is tested on the host.
  { name: 'python3', program: 'python3' },
  // Fetches what templates list under "pip".
  { name: 'python3-pip', program: 'pip3' },
  { name: 'ca-certificates', program: null },
  // The keys that Debian's packages are checked against; there on Debian, not on Ubuntu.
  { name: 'debian-archive-keyring', program: null },
];
/** Who is not root builds images in a user namespace, which takes newuidmap. */
const neededByUsers = [{ name: 'uidmap', program: 'newuidmap' }];

/**
 * What is missing on this host.
 *
 * @param {boolean} isRoot
 * @returns {{apt: boolean, missing: string[]}} `apt`: whether packages can be installed with apt here
 */
export function missingPackages(isRoot) {
  const wanted = isRoot ? needed : [...needed, ...neededByUsers];
  const names = wanted.map((p) => p.name);
  const format = '${db:Status-Status} ${Package}\\n';
  // Exits 1 when any is unknown, and still lists the others.
  const answer = ask('dpkg-query', ['-W', '-f', format, ...names]);
  if (answer.missing) {
    return { apt: false, missing: wanted.filter((p) => p.program && !onPath(p.program)).map((p) => p.name) };
  }
  const installed = new Set(
    answer.stdout
      .split('\n')
      .filter((line) => line.startsWith('installed '))
      .map((line) => line.slice('installed '.length)),
  );
  return { apt: true, missing: names.filter((name) => !installed.has(name)) };
}

function onPath(program) {
  return [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', '/sbin'].some((directory) => {
    try {
      accessSync(join(directory, program), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}
