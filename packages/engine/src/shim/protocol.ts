/** What requests and answers of a shim hold. */
import { constants } from 'node:os';
import {
  shimAbilityBits,
  shimExitKinds,
  shimExtentKinds,
  shimLanguages,
  shimStartFlags,
  shimStepKinds,
} from '@forkd/wire';
import { type LayerExtent, PAGE } from '../memory/index.js';
import { PayloadReader, PayloadWriter } from './frames.js';
import { splitAtRanges } from './ranges.js';
import type {
  CapturedLayer,
  CapturePlan,
  FrozenCapture,
  GraftRequest,
  PauseScript,
  PreparedCapture,
  RamRange,
  ResumeRecipe,
  ShimAbilities,
  ShimSpec,
  VmmExit,
} from './types.js';

/** Who a shim is and what it may do. */
export interface ShimInfo {
  pid: number;
  startTime: bigint;
  vmmPid: number;
  vmmStartTime: bigint;
  abilities: ShimAbilities;
  /** The VMM has ended already; how is told by EXITED. */
  ended: boolean;
}

/** A VMM that has lost its shim. */
export interface Orphan {
  vmmPid: number;
  vmmStartTime: bigint;
  sockets: readonly string[];
  filterAllowsMaps: boolean;
}

const NOBODY_GIVEN = 0xffffffff;

export function encodeStart(spec: ShimSpec, mapsAllowed: boolean, abilities?: ShimAbilities): Buffer {
  const user = spec.uid !== undefined && spec.gid !== undefined;
  const flags =
    (user ? shimStartFlags.USER : 0) |
    (spec.ownKvm ? shimStartFlags.OWN_KVM : 0) |
    startFlags(mapsAllowed, abilities);
  const out = new PayloadWriter()
    .u32(flags, spec.uid ?? NOBODY_GIVEN, spec.gid ?? NOBODY_GIVEN, abilityBits(abilities))
    .text(abilities?.reason ?? '')
    .u32(spec.argv.length, spec.sockets.length);
  for (const text of [...spec.argv, ...spec.sockets]) out.text(text);
  return out.done();
}

export function encodeAdopt(orphan: Orphan, abilities?: ShimAbilities): Buffer {
  const out = new PayloadWriter()
    .u32(startFlags(orphan.filterAllowsMaps, abilities), orphan.vmmPid)
    .u64(orphan.vmmStartTime)
    .u32(abilityBits(abilities))
    .text(abilities?.reason ?? '')
    .u32(orphan.sockets.length);
  for (const text of orphan.sockets) out.text(text);
  return out.done();
}

function startFlags(mapsAllowed: boolean, abilities?: ShimAbilities): number {
  return (abilities ? shimStartFlags.ABILITIES : 0) | (mapsAllowed ? shimStartFlags.MAPS_ALLOWED : 0);
}

function abilityBits(abilities?: ShimAbilities): number {
  if (!abilities) return 0;
  return (
    (abilities.injection ? shimAbilityBits.INJECTION : 0) |
    (abilities.changeUser ? shimAbilityBits.CHANGE_USER : 0) |
    (abilities.attach ? shimAbilityBits.ATTACH : 0)
  );
}

export function decodeAbilities(bits: number, reason: string): ShimAbilities {
  return {
    injection: (bits & shimAbilityBits.INJECTION) !== 0,
    changeUser: (bits & shimAbilityBits.CHANGE_USER) !== 0,
    attach: (bits & shimAbilityBits.ATTACH) !== 0,
    ...(reason !== '' && { reason }),
  };
}

export function decodeInfo(payload: Buffer): ShimInfo {
  const from = new PayloadReader(payload);
  const pid = from.u32();
  const vmmPid = from.u32();
  const startTime = from.u64();
  const vmmStartTime = from.u64();
  const bits = from.u32();
  const ended = from.u32() !== 0;
  return { pid, startTime, vmmPid, vmmStartTime, ended, abilities: decodeAbilities(bits, from.text()) };
}

export function decodeRanges(payload: Buffer): RamRange[] {
  const from = new PayloadReader(payload);
  const count = from.u32();
  return Array.from({ length: count }, () => ({
    guestOffset: from.u64(),
    length: from.u64(),
    address: from.u64(),
  }));
}

export function encodeGraft(request: GraftRequest, timeoutMs: number): Buffer {
  return putGraft(new PayloadWriter(), request, timeoutMs).done();
}

function putGraft(out: PayloadWriter, request: GraftRequest, timeoutMs: number): PayloadWriter {
  const { ram, files } = request;
  const extents = splitAtRanges(request.extents, ram);
  out.u32(ram.length, files.length, extents.length, timeoutMs);
  for (const range of ram) out.u64(range.guestOffset, range.length, range.address);
  const bytes = Buffer.alloc(extents.length * 32);
  for (const [index, extent] of extents.entries()) {
    const at = index * 32;
    bytes.writeUInt32LE(shimExtentKinds[extent.kind], at);
    bytes.writeUInt32LE(extent.file, at + 4);
    bytes.writeBigUInt64LE(extent.fileOffset, at + 8);
    bytes.writeBigUInt64LE(extent.guestOffset, at + 16);
    bytes.writeBigUInt64LE(extent.length, at + 24);
  }
  out.bytes(bytes);
  for (const file of files) out.u64(file.bytes).text(file.path);
  return out;
}

export function encodeCapture(plan: CapturePlan, timeoutMs: number): Buffer {
  const { ram, below } = plan;
  const out = new PayloadWriter()
    .u32(plan.mode === 'diff' ? 0 : plan.patient ? 2 : 1, below.origin)
    .text(plan.layer);
  putGraft(out, { ram, files: below.files, extents: below.extents }, timeoutMs);
  return out
    .text(plan.id ?? '')
    .text(below.id ?? '')
    .done();
}

export function decodePrepared(payload: Buffer): PreparedCapture {
  const from = new PayloadReader(payload);
  const mode = from.u32() !== 0 ? 'live' : 'diff';
  from.u32();
  const privateBytes = Number(from.u64());
  const reason = from.text();
  return { mode, privateBytes, ...(reason !== '' && { reason }) };
}

export function encodePause(script: PauseScript): Buffer {
  const { socket, speaks = 'lines', before, after, freezeAt = '', deadlineMs } = script;
  const out = new PayloadWriter()
    .u32(deadlineMs, shimLanguages[speaks], before.length, after.length)
    .text(socket)
    .text(freezeAt);
  for (const step of [...before, ...after])
    if (typeof step === 'string') out.u32(shimStepKinds.command).text(step).text('');
    else out.u32(shimStepKinds.copy).text(step.copy).text(step.to);
  return out.done();
}

export function decodeFrozen(payload: Buffer): FrozenCapture {
  const from = new PayloadReader(payload);
  const ms = from.u32() / 1000;
  const count = from.u32();
  const steps = Array.from({ length: count }, () => from.u32() / 1000);
  const status = from.u32();
  return { ms, steps, answer: { status, text: from.text() } };
}

const ALL_ZEROS = 0xffffffff;

export function decodeLayer(payload: Buffer): CapturedLayer {
  const from = new PayloadReader(payload);
  const ms = from.u32() / 1000;
  const count = from.u32();
  const bytes = Number(from.u64());
  const comparedPages = Number(from.u64());
  const unchangedPages = Number(from.u64());
  const extents = Array.from({ length: count }, (): LayerExtent => {
    const guestOffset = from.u32() * PAGE;
    const length = from.u32() * PAGE;
    const filePage = from.u32();
    if (filePage === ALL_ZEROS) return { kind: 'zero', guestOffset, length };
    return { kind: 'data', guestOffset, length, fileOffset: filePage * PAGE };
  });
  return { extents, bytes, comparedPages, unchangedPages, ms };
}

export function encodeArm({ deadlineMs, lines, greets = true, socket }: ResumeRecipe): Buffer {
  const out = new PayloadWriter().u32(deadlineMs, lines.length, Number(greets)).text(socket);
  for (const line of lines) out.text(line);
  return out.done();
}

export function decodeExit(payload: Buffer): VmmExit {
  const from = new PayloadReader(payload);
  const kind = from.u32();
  const value = from.u32();
  return exitFrom(kind, value, from.text());
}

/** An exit from its numbers; `unknown` for a kind that is not known. */
export function exitFrom(kind: number | undefined, value: number, lastWords: string): VmmExit {
  if (kind === shimExitKinds.exited) return { kind: 'exited', code: value, lastWords };
  if (kind === shimExitKinds.signaled) return { kind: 'signaled', signal: signalName(value), lastWords };
  return { kind: 'unknown', lastWords };
}

function signalName(number: number): string {
  const entry = Object.entries(constants.signals).find(([, value]) => value === number);
  return entry?.[0] ?? `signal ${number}`;
}
