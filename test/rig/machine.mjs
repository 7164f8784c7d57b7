/** The rig's machine: QEMU emulates a CPU that has SVM, so that the Debian in it has a real /dev/kvm. */
import { spawn } from 'node:child_process';
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, freemem } from 'node:os';
import { join } from 'node:path';
import { Failure } from '../../scripts/lib/run.mjs';
import { crashInFile, watchForCrash } from './crash.mjs';
import { engine } from './parts.mjs';
import { connectRig } from './session.mjs';

const GiB = 1024 ** 3;
/** The agent's own disk; what tests write is on the other one. */
const ROOT_DISK_BYTES = GiB;
const SCRATCH_DISK_BYTES = 16 * GiB;
/** From power-on to the agent's first answer, s: 4 s on an idle host. */
const BOOT_SECONDS = 180;

/** Where the machine's project, seed and scratch disk come to lie; run once after the boot. */
const PREPARE = `set -e
for d in /sys/block/vd*; do
  case $(cat $d/serial) in project) project=/dev/\${d##*/} ;; scratch) scratch=/dev/\${d##*/} ;; esac
done
mkdir -p /w /mnt/project /forkd
mount -t ext4 -o noatime $scratch /w
mount -t squashfs -o ro $project /mnt/project
mkdir -p /w/up /w/wk /w/t
mount -t overlay -o lowerdir=/mnt/project,upperdir=/w/up,workdir=/w/wk forkd /forkd
for p in /forkd/rig/bin/*; do ln -sf $p /usr/local/bin/; done
test -c /dev/kvm || { echo "no /dev/kvm in the rig: does this QEMU emulate SVM?" >&2; exit 1; }
groupadd -f -r kvm && chgrp kvm /dev/kvm && chmod 0660 /dev/kvm
`;

/**
 * Boots the machine.
 *
 * @param {string} dir directory of this run: sockets, disks, serial log
 * @param {{kernel: string, initramfs: string, image: string, project: string}} parts
 * @param {AbortSignal} signal
 * @returns {Promise<{ended: Promise<string>, kill: () => Promise<void>, bootMs: number}>} `ended` tells how it ended: by a crash of its
 *   kernel, or QEMU by itself
 */
export async function bootRig(dir, parts, signal) {
  const started = performance.now();
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(dir, { recursive: true });
  const disks = await makeDisks(dir);
  const argv = rigArguments(dir, parts, disks, await tscKhz());
  const log = openSync(join(dir, 'qemu.log'), 'w');
  // Whatever ends us, SIGKILL included, ends it.
  const qemu = spawn('setpriv', ['--pdeathsig', 'KILL', '--', ...argv], { stdio: ['ignore', log, log] });
  closeSync(log);
  const serial = join(dir, 'serial.log');
  // A kernel that has crashed reboots, which ends QEMU; one that cannot even do that is ended.
  const watched = watchForCrash(serial, () => qemu.kill('SIGKILL'));
  const ended = new Promise((resolve) => {
    qemu.on('error', (error) => resolve(`its QEMU cannot run: ${error.message}`));
    qemu.on('exit', (code, by) => {
      const crash = crashInFile(serial);
      resolve(crash ? `its kernel crashed: ${crash}` : `its QEMU ended: ${by ?? `exit code ${code}`}`);
    });
  }).finally(watched.close);
  const kill = async () => {
    qemu.kill('SIGKILL');
    await ended;
  };
  try {
    const session = await Promise.race([
      connectRig(dir, BOOT_SECONDS * 1000, signal),
      ended.then((how) => Promise.reject(new Failure(how))),
    ]);
    try {
      await runChecked(session, PREPARE);
    } finally {
      await session.close();
    }
    return { ended, kill, bootMs: performance.now() - started };
  } catch (error) {
    await kill();
    throw new Failure(`the rig did not boot: ${error.message}\n${lastWords(dir)}`, `its logs are in ${dir}`);
  }
}

/** Removes what is large of a machine that has ended. Answers where its logs are. */
export function keepLogs(dir) {
  for (const name of ['root.disk', 'scratch.disk']) rmSync(join(dir, name), { force: true });
  return dir;
}

/** What QEMU and the serial console said last. */
export function lastWords(dir) {
  return ['qemu.log', 'serial.log']
    .map((name) => join(dir, name))
    .filter((path) => existsSync(path))
    .map((path) => `--- ${path}\n${readFileSync(path, 'utf8').slice(-3000)}`)
    .join('\n');
}

async function runChecked(session, shell) {
  const child = await session.spawn({ command: { shell }, stdin: 'none' });
  let said = '';
  child.stdout.resume();
  child.stderr.on('data', (chunk) => {
    said += chunk;
  });
  const outcome = await child.wait();
  await child.release();
  if (outcome.kind !== 'exited' || outcome.code !== 0)
    throw new Error(`preparing the machine: ${JSON.stringify(outcome.kind)} ${said.trim()}`);
}

async function makeDisks(dir) {
  const { ensureDisk, copyDisk } = await engine('guest/disk.js');
  const disks = {};
  for (const [name, bytes] of [
    ['root', ROOT_DISK_BYTES],
    ['scratch', SCRATCH_DISK_BYTES],
  ]) {
    const { path } = await ensureDisk({ home: join(dir, '../host'), bytes });
    disks[name] = join(dir, `${name}.disk`);
    await copyDisk(path, disks[name]);
  }
  return disks;
}

async function tscKhz() {
  const { tscKhz: measure } = await engine('host/tsc.js');
  return Math.round(await measure(join(import.meta.dirname, '../../build/native/forkd-shim')));
}

function rigArguments(dir, parts, disks, khz) {
  const append = [
    // Whatever goes wrong in it ends it, and says so on the console.
    'console=ttyS0 oops=panic softlockup_panic=1 watchdog_thresh=60 panic=-1 reboot=t quiet loglevel=5',
    // A vCPU that waits is not waited for in a loop: what emulates it has other work.
    'rdinit=/init mitigations=off kvm.halt_poll_ns=0',
    // QEMU keeps translated code by its address: with random ones each start of QEMU or Node in it takes two to three times as long.
    `tsc_early_khz=${khz} tsc=reliable no_timer_check initcall_blacklist=tracer_init_tracefs norandmaps psi=0 lsm=landlock,yama`,
  ].join(' ');
  const disk = (serial, file, options) => [
    '-blockdev',
    JSON.stringify({
      driver: 'raw',
      'node-name': serial,
      file: { driver: 'file', filename: file, locking: 'off', ...options },
      ...options,
    }),
    '-device',
    `virtio-blk-pci,drive=${serial},serial=${serial}`,
  ];
  const readOnly = { 'read-only': true };
  const scratch = { cache: { 'no-flush': true } };
  return [
    ...['qemu-system-x86_64', '-M', 'q35', '-cpu', 'EPYC-Rome,+svm,+npt', '-accel', 'tcg,thread=multi'],
    ...['-smp', String(Math.min(2, availableParallelism())), '-m', `${memoryMiB()}M`],
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot', '-name', 'forkd-rig'],
    ...['-kernel', parts.kernel, '-initrd', parts.initramfs, '-append', append],
    ...['-chardev', `file,id=serial,path=${join(dir, 'serial.log')}`, '-serial', 'chardev:serial'],
    // In the order of the slots: the agent takes the first image and the first disk for its own.
    ...disk('image', parts.image, readOnly),
    ...disk('root', disks.root, scratch),
    ...disk('project', parts.project, readOnly),
    ...disk('scratch', disks.scratch, scratch),
    ...['-device', 'virtio-serial-pci,max_ports=2'],
    ...['-chardev', `socket,id=agent,path=${join(dir, 'agent.sock')},server=on,wait=off`],
    ...['-device', 'virtserialport,chardev=agent,name=agent'],
  ];
}

/** 8 GiB where the host has them to spare, never less than 3. */
function memoryMiB() {
  return Math.max(3072, Math.min(8192, Math.floor((freemem() / 1024 ** 2) * 0.6)));
}
