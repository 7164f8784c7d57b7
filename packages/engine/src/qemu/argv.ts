import type { Accelerator } from '../types.js';
import { COMMAND_LINE } from '../vmm/command-line.js';
import type { MachineShape } from '../vmm/types.js';

/** Machine type, with what it needs for a state without description and with ACPI (design, section 9). */
export const MACHINE_TYPE =
  'microvm,acpi=on,memory-backend=mem,suppress-vmdesc=on,dump-guest-core=off,mem-merge=off';

/** Counts up when the devices below change: device state of other devices does not load. */
export const DEVICES = 2;

/** Names of files and sockets in a VMM's working directory. */
export const vmmFiles = {
  memory: 'memory',
  state: 'state',
  image: 'image',
  disk: 'disk',
  overlay: 'overlay.qcow2',
  console: 'console.log',
  migration: 'mig.sock',
  monitor: 'qmp.sock',
  shimMonitor: 'qmp-shim.sock',
  agent: 'agent.sock',
} as const;

/** Name of a link of the snapshot's disk in a run directory; 0 is the base. */
export function belowFile(index: number): string {
  return `disk-${index}`;
}

/** Sockets that the shim makes and QEMU gets as descriptors. */
export const vmmSockets = [vmmFiles.monitor, vmmFiles.shimMonitor, vmmFiles.agent] as const;

/** Console output that a child keeps, bytes: a guest can write no more than this to the host. */
export const CONSOLE_BYTES = 65_536;

export interface BootArgs {
  kernel: string;
  initrd: string;
  tscKhz: number;
}

/**
 * What the guest's kernel is told, but for the TSC rate.
 *
 * tcg: on a busy host the kernel's watchdog would take the guest's TSC for broken, and its clock then ticks by the jiffy. QEMU 7.2 keeps
 * translated code by its address in the guest: with random addresses each exec has its loader and libc translated anew, 40 of 60 ms.
 */
export function commandLine(accelerator: Accelerator): string {
  return `${COMMAND_LINE} reboot=t${accelerator === 'tcg' ? ' tsc=reliable no_timer_check norandmaps' : ''}`;
}

/** Arguments of a template's machine: boots a kernel, its memory is the file that becomes the base. */
export function bootArgv(binary: string, shape: MachineShape, boot: BootArgs): string[] {
  const tsc = shape.accelerator === 'tcg' ? ` tsc_early_khz=${Math.round(boot.tscKhz)}` : '';
  const append = commandLine(shape.accelerator) + tsc;
  return [
    ...common(binary, shape),
    '-object',
    `memory-backend-file,id=mem,size=${shape.memoryBytes},mem-path=${vmmFiles.memory},share=on`,
    ...['-kernel', boot.kernel, '-initrd', boot.initrd, '-append', append],
    ...['-chardev', `file,id=console,path=${vmmFiles.console}`],
    ...['-no-reboot'],
    ...disks(
      {
        driver: 'raw',
        'node-name': 'disk',
        cache: { 'no-flush': true },
        file: fileNode(vmmFiles.disk, false),
      },
      'disk',
    ),
  ];
}

/** Arguments of a child: paused, no kernel, anonymous memory that waits for a graft, an overlay without backing. */
export function childArgv(binary: string, shape: MachineShape): string[] {
  const overlay = {
    driver: 'qcow2',
    'node-name': 'overlay',
    cache: { 'no-flush': true },
    file: { ...fileNode(vmmFiles.overlay, false), 'node-name': 'overlay-file' },
    backing: null,
  };
  return [
    ...common(binary, shape),
    '-object',
    `memory-backend-memfd,id=mem,size=${shape.memoryBytes},share=off`,
    ...['-S', '-incoming', 'defer'],
    ...['-chardev', `ringbuf,id=console,size=${CONSOLE_BYTES}`],
    // A guest that ends is kept for the daemon to read its last words.
    ...['-action', 'reboot=shutdown,shutdown=pause'],
    ...disks(overlay, 'overlay'),
  ];
}

function common(binary: string, shape: MachineShape): string[] {
  return [
    binary,
    ...['-M', MACHINE_TYPE, '-accel', shape.accelerator, '-cpu', shape.cpuModel],
    ...['-m', `${shape.memoryBytes / 1048576}M`, '-smp', String(shape.vcpus)],
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-name', 'forkd'],
    ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
    ...['-global', 'migration.send-configuration=off'],
    ...['-serial', 'chardev:console'],
    ...[
      '-chardev',
      `socket,id=monitor,fd=@fd:${vmmFiles.monitor}@,server=on,wait=off`,
      '-mon',
      'chardev=monitor,mode=control',
    ],
    ...[
      '-chardev',
      `socket,id=shimmonitor,fd=@fd:${vmmFiles.shimMonitor}@,server=on,wait=off`,
      '-mon',
      'chardev=shimmonitor,mode=control',
    ],
    // 31 ports, the default, cost each guest 4 MiB.
    ...['-device', 'virtio-serial-device,max_ports=2'],
    ...['-chardev', `socket,id=agent,fd=@fd:${vmmFiles.agent}@,server=on,wait=off`],
    ...['-device', 'virtserialport,chardev=agent,name=agent'],
  ];
}

/** The read-only image and the writable disk, in the order that both kinds of machine share. */
function disks(writable: Record<string, unknown>, node: string): string[] {
  const image = {
    driver: 'raw',
    'node-name': 'image',
    'read-only': true,
    file: fileNode(vmmFiles.image, true),
  };
  // A full host disk is told to the guest as an I/O error: the default would leave the machine paused.
  const onError = 'werror=report,rerror=report';
  return [
    ...['-blockdev', JSON.stringify(image), '-device', `virtio-blk-device,drive=image,${onError}`],
    ...['-blockdev', JSON.stringify(writable), '-device', `virtio-blk-device,drive=${node},${onError}`],
  ];
}

/**
 * A file as QEMU's protocol node. Nobody else writes it: the run directory has one owner, so no lock is needed. One that nothing writes to
 * any more (a branch has put an overlay over it) is opened for reading: it has become a snapshot's, which its VMM may not change.
 *
 * At the end of each load QEMU would sync every file, and drop what the host has of it in memory: 20 ms after a branch, and the disk of a
 * template read anew by the next child. That is for files that another host may have changed.
 */
export function fileNode(filename: string, readOnly: boolean): Record<string, unknown> {
  return {
    driver: 'file',
    filename,
    'read-only': readOnly,
    locking: 'off',
    'drop-cache': false,
    ...(!readOnly && { 'auto-read-only': true, cache: { 'no-flush': true } }),
  };
}
