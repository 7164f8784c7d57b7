/** The disk of a branch, without its memory: as a crash of the guest would have left it. */
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { scratchIn } from '../../packages/engine/src/guest/cache.js';
import { ensureInitramfs } from '../../packages/engine/src/guest/initramfs.js';
import { ensureKernel } from '../../packages/engine/src/guest/kernel.js';
import { hostPin } from '../../packages/engine/src/host/pin.js';
import { vmmUser } from '../../packages/engine/src/host/user.js';
import { probeAbilities } from '../../packages/engine/src/shim/index.js';
import type { Manifest } from '../../packages/engine/src/snapshot/index.js';
import { bootMachine } from '../../packages/engine/src/vmm/boot.js';
import { driverOf } from '../../packages/engine/src/vmm/drivers.js';
import type { BootedMachine } from '../../packages/engine/src/vmm/types.js';
import { client, fork, sh } from '../sandbox/support.js';
import { sharedHome } from '../support/home.js';
import { branch, inChild } from './support.js';

const nativeDir = fileURLToPath(new URL('../../build/native/', import.meta.url));
/** How long a guest under emulation may take to boot on a busy host, ms. */
const BOOT_MS = 120_000;

/** A branch's disk as one raw file, from its overlay and the template's disk below. */
function flattened(dir: string, top: string, below: string): string {
  const file = (filename: string) => ({ driver: 'file', filename });
  const image = {
    ...{ driver: 'qcow2', file: file(top) },
    backing: { driver: 'raw', file: file(below) },
  };
  const raw = join(dir, 'raw');
  execFileSync('qemu-img', ['convert', '-U', '-O', 'raw', `json:${JSON.stringify(image)}`, raw]);
  return raw;
}

/** Boots a machine anew, of the shape and image of a snapshot, with a disk of its own in its directory. */
async function boot(manifest: Manifest, workDir: string): Promise<BootedMachine> {
  const { engine, accelerator } = manifest.machine;
  const home = sharedHome();
  const shimBinary = join(nativeDir, 'forkd-shim');
  const [abilities, kernel] = await Promise.all([probeAbilities(shimBinary), ensureKernel({ home })]);
  const [initramfs, pin] = await Promise.all([
    ensureInitramfs({ home, nativeDir, kernel }),
    hostPin(driverOf(engine), accelerator, shimBinary),
  ]);
  return await bootMachine(driverOf(engine), {
    ...{ workDir, shimBinary, abilities, kernel, initrd: initramfs.path, timeoutMs: BOOT_MS },
    shape: { accelerator, cpuModel: pin.cpuModel, memoryBytes: manifest.memoryBytes, vcpus: manifest.vcpus },
    user: vmmUser(abilities, accelerator),
    image: join(home, 'cache/images', manifest.image.name),
    tscKhz: pin.tscKhz,
  });
}

/** A journal to replay is no damage: what is wrong after that makes the check fail. */
function check(raw: string): void {
  execFileSync('e2fsck', ['-E', 'journal_only', '-y', raw], { stdio: 'ignore' });
  execFileSync('e2fsck', ['-f', '-n', raw], { stdio: 'ignore' });
}

it('a branch has a file system that is clean: in a child, when it is checked alone, and when a machine boots from it alone', {
  timeout: 2 * BOOT_MS,
}, async () => {
  await using children = await fork();
  const { box } = children;
  const writer = await box.run(
    { shell: 'while true; do dd if=/dev/urandom of=/root/big bs=64k count=64 conv=fsync 2>/dev/null; done' },
    { keep: true },
  );
  await sh(box, 'echo synced > /root/file && sync');
  await using half = await branch(box);
  writer.signal('SIGKILL');
  const inside =
    'cat /root/file; dmesg | grep -ciE "ext4.*(error|corrupt)|I/O error" || true; killall dd; sync; echo $?';
  expect(await inChild(half.id, inside)).toBe('synced\n0\n0');

  const base = await client().snapshots.get('busybox');
  const dir = mkdtempSync(join(tmpdir(), 'forkd-disk-'));
  try {
    const raw = flattened(dir, join(half.info.dir, 'disk'), join(base.dir, 'disk'));
    // Under the state directory: what a machine opens is linked from there.
    await using scratch = await scratchIn(join(sharedHome(), 'builds'));
    copyFileSync(raw, join(scratch.dir, 'disk'));
    check(raw);
    {
      await using machine = await boot(base.manifest as Manifest, scratch.dir);
      const { files } = machine.session;
      expect(await text((await files.read('/root/file')).stream)).toBe('synced\n');
      await files.write('/root/after', Buffer.from('written after the boot\n'));
      await machine.session.sync();
      expect(await machine.consoleTail()).not.toMatch(/EXT4-fs.*error|I\/O error/);
    }
    check(join(scratch.dir, 'disk'));
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});
