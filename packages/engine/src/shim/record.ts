import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { shimStartFlags } from '@forkd/wire';
import { hostBootId } from '../host/boot-id.js';
import type { Orphan } from './protocol.js';

/** shim.json: what a shim leaves for whoever comes later. */
export interface ShimRecord extends Orphan {
  pid: number;
  startTime: bigint;
  bootId: string;
  pidNamespace: string;
  exitKind?: number;
  exitValue?: number;
}

/** The record of a run directory; null when there is none, or it is of another boot or pid namespace. */
export async function readRecord(dir: string): Promise<ShimRecord | null> {
  const text = await readFile(join(dir, 'shim.json'), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
  if (text === null) return null;
  const raw = JSON.parse(text) as Record<string, unknown>;
  const record: ShimRecord = {
    pid: Number(raw.pid),
    startTime: BigInt(String(raw.startTime)),
    vmmPid: Number(raw.vmmPid),
    vmmStartTime: BigInt(String(raw.vmmStartTime)),
    bootId: String(raw.bootId),
    pidNamespace: String(raw.pidNamespace),
    sockets: (raw.sockets as unknown[]).map(String),
    filterAllowsMaps: (Number(raw.flags) & shimStartFlags.MAPS_ALLOWED) !== 0,
    ...(typeof raw.exitKind === 'number' && { exitKind: raw.exitKind, exitValue: Number(raw.exitValue) }),
  };
  const namespace = (await stat('/proc/self/ns/pid', { bigint: true })).ino.toString();
  return record.bootId === hostBootId() && record.pidNamespace === namespace ? record : null;
}

/** Whether the process that had this number at that time still runs; a dead one that nobody has reaped does not. */
export async function runs(pid: number, startTime: bigint): Promise<boolean> {
  const text = await readFile(`/proc/${pid}/stat`, 'latin1').catch(() => '');
  // The program's name may hold anything: fields count from its closing bracket.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return fields[19] === String(startTime) && fields[0] !== 'Z' && fields[0] !== 'X';
}
