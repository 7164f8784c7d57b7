import { EngineError } from '../errors.js';
import { type Accelerator, accelerators, type EngineName, engineNames } from '../types.js';
import { type Candidate, candidates, obstacle, type Prove, rememberedVerdict, verdictOn } from './verdict.js';

export interface EngineChoice extends Candidate {
  /** Why this one, for people. */
  reason: string;
}

/** What somebody asks for; what is left out is up to us. */
export interface Wanted {
  engine?: EngineName;
  accelerator?: Accelerator;
}

/**
 * What the environment asks for: `FORKD_ENGINE` and `FORKD_ACCELERATOR`, each `auto` when unset.
 *
 * @throws EngineError invalid_argument
 */
export function wantedByEnvironment(env: NodeJS.ProcessEnv = process.env): Wanted {
  const engine = oneOf('FORKD_ENGINE', env.FORKD_ENGINE, engineNames);
  const accelerator = oneOf('FORKD_ACCELERATOR', env.FORKD_ACCELERATOR, accelerators);
  return { ...(engine && { engine }), ...(accelerator && { accelerator }) };
}

function oneOf<T extends string>(name: string, value: string | undefined, all: readonly T[]): T | undefined {
  if (value === undefined || value === 'auto') return undefined;
  const found = all.find((item) => item === value);
  if (found === undefined)
    throw new EngineError(
      'invalid_argument',
      `${name}=${JSON.stringify(value)} is not one of auto, ${all.join(', ')}`,
    );
  return found;
}

/**
 * Chooses what runs sandboxes: the first of the candidates on which our guest has booted.
 *
 * @throws EngineError host_unfit when nothing of what is wanted works here, with the reason of each
 */
export async function chooseEngine(
  home: string,
  wanted: Wanted,
  prove: Prove,
  signal?: AbortSignal,
): Promise<EngineChoice> {
  const possible = candidates.filter(
    ({ engine, accelerator }) =>
      (wanted.engine ?? engine) === engine && (wanted.accelerator ?? accelerator) === accelerator,
  );
  const failures: string[] = [];
  const remedies: string[] = [];
  for (const candidate of possible) {
    const { engine, accelerator } = candidate;
    const problem = await obstacle(candidate);
    if (problem === null) {
      // What is asked for by name and needs nothing of the host's hardware is taken at its word.
      if (wanted.accelerator === 'tcg') return { ...candidate, reason: 'accelerator tcg was asked for' };
      const verdict = await verdictOn(home, candidate, prove, signal);
      if (verdict.works) {
        const booted = `our guest booted on it in ${Math.round(verdict.ms)} ms`;
        return { ...candidate, reason: [booted, ...failures].join('. ') };
      }
      failures.push(`${engine} on ${accelerator} cannot be used here: ${verdict.reason}`);
      if (accelerator === 'kvm') remedies.push(USE_ANOTHER_KVM);
      continue;
    }
    failures.push(`${engine} on ${accelerator} cannot be used here: ${problem.reason}`);
    if (problem.remedy) remedies.push(problem.remedy);
    // Whoever has put there what is missing must not learn only then that it is of no use.
    if (wanted.engine === 'firecracker') failures.push(...(await knownOfKvm(home)));
  }
  throw unfit(wanted, failures, remedies);
}

const USE_ANOTHER_KVM =
  'Use a host whose /dev/kvm boots Linux (hardware, or a virtual machine with nested virtualisation); where a boot is only slow, give it more time with FORKD_PROOF_SECS.';

/** That kvm has been seen not to work for the other engine. */
async function knownOfKvm(home: string): Promise<string[]> {
  const qemu: Candidate = { engine: 'qemu', accelerator: 'kvm' };
  const verdict = (await obstacle(qemu)) === null ? await rememberedVerdict(home, qemu) : undefined;
  return verdict && !verdict.works ? [`kvm does not work for qemu here either: ${verdict.reason}`] : [];
}

function unfit(wanted: Wanted, failures: readonly string[], remedies: readonly string[]): EngineError {
  const asked = [
    ...(wanted.engine ? [`engine ${wanted.engine}`] : []),
    ...(wanted.accelerator ? [`accelerator ${wanted.accelerator}`] : []),
  ].join(' with ');
  const why =
    failures.length > 0 ? failures.join('. ') : 'firecracker runs on kvm only, and qemu on kvm and tcg';
  return new EngineError(
    'host_unfit',
    asked === '' ? `no engine works on this host: ${why}` : `${asked} was asked for, but ${why}`,
    {
      remedy: [
        ...new Set(remedies),
        'Or leave the choice to forkd ("auto"); "forkd doctor --prove" shows each verdict.',
      ].join(' '),
    },
  );
}
