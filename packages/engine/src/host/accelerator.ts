import { closeSync, constants, openSync } from 'node:fs';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { release } from 'node:os';
import { dirname, join } from 'node:path';
import Type, { type Static } from 'typebox';
import Schema from 'typebox/schema';
import { EngineError, messageOf } from '../errors.js';
import { findQemu } from '../qemu/binary.js';
import type { Accelerator } from '../types.js';
import { hostBootId } from './boot-id.js';

/** What a boot of our guest on kvm showed. Holds for one boot of the host, its kernel, and one QEMU. */
const Verdict = Type.Object(
  {
    bootId: Type.String(),
    kernel: Type.String(),
    qemuSha256: Type.String(),
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

/** How long our guest may take to boot on a kvm that works, ms. It takes a second or two there. */
export const PROOF_MS = 15_000;

export interface AcceleratorChoice {
  accelerator: Accelerator;
  /** Why this one, for people. */
  reason: string;
}

/**
 * Chooses what executes guest code.
 *
 * @param prove boots our guest on kvm, and throws where that fails
 * @throws EngineError host_unfit when `FORKD_ACCELERATOR=kvm` asks for what does not work here
 */
export async function chooseAccelerator(
  home: string,
  prove: (signal?: AbortSignal) => Promise<void>,
  signal?: AbortSignal,
): Promise<AcceleratorChoice> {
  const wanted = process.env.FORKD_ACCELERATOR ?? 'auto';
  if (!['auto', 'kvm', 'tcg'].includes(wanted))
    throw new EngineError(
      'invalid_argument',
      `FORKD_ACCELERATOR=${JSON.stringify(wanted)} is not one of auto, kvm, tcg`,
    );
  if (wanted === 'tcg') return { accelerator: 'tcg', reason: 'FORKD_ACCELERATOR=tcg asks for it' };
  const problem = kvmDevice();
  const verdict = problem ? undefined : await kvmVerdict(home, prove, signal);
  if (verdict?.works)
    return { accelerator: 'kvm', reason: `our guest booted on it in ${Math.round(verdict.ms)} ms` };
  const reason = problem ?? verdict?.reason ?? 'not proven';
  if (wanted === 'kvm')
    throw new EngineError('host_unfit', `FORKD_ACCELERATOR=kvm, but kvm cannot be used here: ${reason}`, {
      remedy: 'Use FORKD_ACCELERATOR=auto or tcg, or mend kvm (see "forkd doctor").',
    });
  return { accelerator: 'tcg', reason: `kvm cannot be used here: ${reason}` };
}

/** Why /dev/kvm cannot be opened; null when it can. */
export function kvmDevice(): string | null {
  try {
    closeSync(openSync('/dev/kvm', constants.O_RDWR));
    return null;
  } catch (error) {
    return messageOf(error);
  }
}

/** The remembered verdict on kvm, or a new one. */
async function kvmVerdict(
  home: string,
  prove: (signal?: AbortSignal) => Promise<void>,
  signal?: AbortSignal,
): Promise<Verdict> {
  const known = await rememberedVerdict(home);
  if (known) return known;
  const start = performance.now();
  const outcome = await prove(signal).then(
    () => ({ works: true, reason: 'our guest booted on it' }),
    (error: unknown) => {
      if (signal?.aborted) throw error;
      return {
        works: false,
        reason: `/dev/kvm opens, but our guest did not boot on it: ${firstLine(error)}`,
      };
    },
  );
  const { sha256 } = await findQemu();
  const verdict: Verdict = {
    bootId: hostBootId(),
    kernel: release(),
    qemuSha256: sha256,
    ...outcome,
    ms: performance.now() - start,
    at: Date.now(),
  };
  await remember(home, verdict);
  return verdict;
}

/** The verdict of this boot, kernel and QEMU, when there is one. */
export async function rememberedVerdict(home: string): Promise<Verdict | undefined> {
  const text = await readFile(verdictFile(home), 'utf8').catch(() => null);
  if (text === null) return undefined;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined; // Half a file from a crash: prove again.
  }
  if (!check.Check(value)) return undefined;
  const { sha256 } = await findQemu();
  const holds = value.bootId === hostBootId() && value.kernel === release() && value.qemuSha256 === sha256;
  return holds ? value : undefined;
}

async function remember(home: string, verdict: Verdict): Promise<void> {
  const path = verdictFile(home);
  await mkdir(dirname(path), { recursive: true });
  await writeFile(`${path}.${process.pid}`, JSON.stringify(verdict));
  await rename(`${path}.${process.pid}`, path);
}

function verdictFile(home: string): string {
  return join(home, 'cache', 'kvm-verdict.json');
}

function firstLine(error: unknown): string {
  return messageOf(error).split('\n')[0]!.slice(0, 300);
}
