import { closeSync, constants, openSync } from 'node:fs';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { release } from 'node:os';
import { dirname, join } from 'node:path';
import Type, { type Static } from 'typebox';
import Schema from 'typebox/schema';
import { EngineError, messageOf } from '../errors.js';
import type { Accelerator, EngineName } from '../types.js';
import { driverOf } from '../vmm/drivers.js';
import { hostBootId } from './boot-id.js';
import { hostFault } from './fault.js';

/** An engine with what executes guest code for it. */
export interface Candidate {
  engine: EngineName;
  accelerator: Accelerator;
}

/** All there are, best first. */
export const candidates: readonly Candidate[] = [
  { engine: 'firecracker', accelerator: 'kvm' },
  { engine: 'qemu', accelerator: 'kvm' },
  { engine: 'qemu', accelerator: 'tcg' },
];

/** What a boot of our guest showed. Holds for one boot of the host, its kernel, and one binary of the engine. */
const Verdict = Type.Object(
  {
    bootId: Type.String(),
    kernel: Type.String(),
    engineSha256: Type.String(),
    works: Type.Boolean(),
    reason: Type.String(),
    ms: Type.Number(),
    /** Milliseconds since 1970. */
    at: Type.Number(),
  },
  { additionalProperties: false },
);
export type Verdict = Static<typeof Verdict>;

const check = Schema.Compile(Verdict);

/** Boots our guest with a candidate, and throws where that fails. */
export type Prove = (candidate: Candidate, signal?: AbortSignal) => Promise<void>;

/** What is not there, and what mends that. */
export interface Obstacle {
  reason: string;
  remedy?: string | undefined;
}

/** Why a candidate cannot even be tried: its program or its device is not there, or neither. Null when it can. */
export async function obstacle({ engine, accelerator }: Candidate): Promise<Obstacle | null> {
  if (!candidates.some((one) => one.engine === engine && one.accelerator === accelerator))
    return { reason: `${engine} does not run on ${accelerator}` };
  const program = await driverOf(engine)
    .find()
    .then(
      () => null,
      (error: unknown) => ({
        reason: firstLine(error),
        remedy: error instanceof EngineError ? error.remedy : undefined,
      }),
    );
  const found = [program, accelerator === 'kvm' ? kvmObstacle() : null].filter((one) => one !== null);
  if (found.length === 0) return null;
  return {
    reason: found.map(({ reason }) => reason).join(', and '),
    remedy: found.flatMap(({ remedy }) => remedy ?? []).join(' '),
  };
}

function kvmObstacle(): Obstacle | null {
  try {
    closeSync(openSync('/dev/kvm', constants.O_RDWR));
    return null;
  } catch (error) {
    switch ((error as NodeJS.ErrnoException).code) {
      case 'ENOENT':
        return {
          reason: 'there is no /dev/kvm',
          remedy:
            'For /dev/kvm: load kvm_intel or kvm_amd; have nested virtualisation turned on where the host is a virtual machine, and the device passed on where it is a container.',
        };
      case 'EACCES':
        return {
          reason: 'this user may not open /dev/kvm',
          remedy: "Add the daemon's user to the group of /dev/kvm, and start the daemon from a new login.",
        };
      default:
        return { reason: `/dev/kvm cannot be used: ${firstLine(error)}` };
    }
  }
}

/**
 * The remembered verdict on a candidate that can be tried, or a new one.
 *
 * @throws EngineError insufficient_disk, limit_reached, insufficient_memory where the host could not even try; cancelled
 */
export async function verdictOn(
  home: string,
  candidate: Candidate,
  prove: Prove,
  signal?: AbortSignal,
): Promise<Verdict> {
  return (await rememberedVerdict(home, candidate)) ?? (await newVerdict(home, candidate, prove, signal));
}

/** Tries a candidate that can be tried, and remembers what came of it. */
export async function newVerdict(
  home: string,
  candidate: Candidate,
  prove: Prove,
  signal?: AbortSignal,
): Promise<Verdict> {
  const start = performance.now();
  const outcome = await prove(candidate, signal).then(
    () => ({ works: true, reason: 'our guest booted on it' }),
    (error: unknown) => {
      if (signal?.aborted) throw error;
      // A full disk, or a limit, says nothing of the candidate, and must not hold until the host's next boot.
      const fault = hostFault(error, `the proof of ${candidate.engine} on ${candidate.accelerator}`, home);
      if (fault) throw fault;
      const opens = candidate.accelerator === 'kvm' ? '/dev/kvm opens, but our' : 'our';
      return { works: false, reason: `${opens} guest did not boot on it: ${firstLine(error)}` };
    },
  );
  const { sha256 } = await driverOf(candidate.engine).find();
  const verdict: Verdict = {
    bootId: hostBootId(),
    kernel: release(),
    engineSha256: sha256,
    ...outcome,
    ms: performance.now() - start,
    at: Date.now(),
  };
  // Nothing comes after tcg: a failure of a busy moment must not hold until the host's next boot.
  if (verdict.works || candidate.accelerator === 'kvm') await remember(home, candidate, verdict);
  return verdict;
}

/** The verdict of this boot, kernel and binary, when there is one. */
export async function rememberedVerdict(home: string, candidate: Candidate): Promise<Verdict | undefined> {
  const text = await readFile(verdictFile(home, candidate), 'utf8').catch(() => null);
  if (text === null) return undefined;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined; // Half a file from a crash: prove again.
  }
  if (!check.Check(value)) return undefined;
  const { sha256 } = await driverOf(candidate.engine).find();
  const holds = value.bootId === hostBootId() && value.kernel === release() && value.engineSha256 === sha256;
  return holds ? value : undefined;
}

async function remember(home: string, candidate: Candidate, verdict: Verdict): Promise<void> {
  const path = verdictFile(home, candidate);
  await mkdir(dirname(path), { recursive: true });
  await writeFile(`${path}.${process.pid}`, JSON.stringify(verdict));
  await rename(`${path}.${process.pid}`, path);
}

function verdictFile(home: string, { engine, accelerator }: Candidate): string {
  return join(home, 'cache', `verdict-${engine}-${accelerator}.json`);
}

function firstLine(error: unknown): string {
  return messageOf(error).split('\n')[0]!.slice(0, 300);
}
