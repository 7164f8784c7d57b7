import { constants } from 'node:fs';
import { access, readFile } from 'node:fs/promises';
import { EngineError, messageOf } from '../errors.js';
import { findFirecracker } from '../firecracker/binary.js';
import { findQemu } from '../qemu/binary.js';
import type { ShimAbilities } from '../shim/index.js';
import type { HostCheck } from '../types.js';
import { findProgram } from '../vmm/program.js';
import type { EngineChoice } from './choice.js';
import { freeBytes } from './disk-space.js';
import { availableMemory, CHILD_BYTES } from './memory.js';
import { tscKhz } from './tsc.js';
import {
  type Candidate,
  candidates,
  newVerdict,
  obstacle,
  type Prove,
  rememberedVerdict,
} from './verdict.js';

const GiB = 1024 ** 3;

/** Programs that building templates needs, and the Debian package of each. */
const buildTools = [
  ['mmdebstrap', 'mmdebstrap'],
  ['sqfstar', 'squashfs-tools'],
  ['mke2fs', 'e2fsprogs'],
  ['dpkg-deb', 'dpkg'],
  ['busybox', 'busybox-static'],
] as const;

export interface CheckContext {
  home: string;
  shimBinary: string;
  abilities: () => Promise<ShimAbilities>;
  choice: () => Promise<EngineChoice>;
  /** Boots a guest on each candidate that is not known to work. */
  prove: Prove | undefined;
  signal: AbortSignal | undefined;
}

/** Checks every prerequisite of the host; none of them stops another. */
export async function checkHost(context: CheckContext): Promise<HostCheck[]> {
  // One by one: each proof boots a machine. What is asked to prove tries again what had failed, before the choice is made; the choice, else, is
  // what may leave verdicts.
  const choose = () => guarded('accelerator', () => checkChoice(context));
  const chosenBefore = context.prove ? undefined : await choose();
  const verdicts: HostCheck[] = [];
  for (const candidate of candidates)
    verdicts.push(
      await guarded(`${candidate.engine} on ${candidate.accelerator}`, () =>
        checkCandidate(candidate, context),
      ),
    );
  const checks = await Promise.all([
    guarded('QEMU', checkQemu),
    guarded('Firecracker', checkFirecracker),
    guarded('native programs', () => checkNative(context.shimBinary)),
    guarded('memory injection', () => checkInjection(context)),
    guarded('memory', checkMemory),
    guarded('overcommit', checkOvercommit),
    guarded('mappings', checkMappings),
    guarded('disk space', () => checkDisk(context.home)),
    guarded('clock', () => checkClock(context.shimBinary)),
    ...buildTools.map(([program, pkg]) => guarded(program, () => checkProgram(program, pkg))),
    guarded('privileges', checkPrivileges),
  ]);
  const [qemu, firecracker, ...rest] = checks;
  return [qemu!, firecracker!, ...verdicts, chosenBefore ?? (await choose()), ...rest];
}

type Finding = Omit<HostCheck, 'name'>;

async function guarded(name: string, check: () => Promise<Finding> | Finding): Promise<HostCheck> {
  try {
    return { name, ...(await check()) };
  } catch (error) {
    const remedy = error instanceof EngineError ? error.remedy : undefined;
    return { name, state: 'fail', found: messageOf(error), ...(remedy && { remedy }) };
  }
}

async function checkQemu(): Promise<Finding> {
  const { path, version } = await findQemu();
  return { state: 'pass', found: `${version} (${path})` };
}

async function checkFirecracker(): Promise<Finding> {
  try {
    const { path, version, jailer } = await findFirecracker();
    const jail = jailer.path === null ? `without a jailer: ${jailer.reason}` : `in ${jailer.path}`;
    return { state: 'pass', found: `${version} (${path}), ${jail}` };
  } catch (error) {
    if (!(error instanceof EngineError)) throw error;
    // Nothing is missing where there is none: QEMU serves every host.
    return { state: 'pass', found: `${error.message}: qemu is used. ${error.remedy ?? ''}`.trim() };
  }
}

/** The verdict on one engine with one accelerator: its reason, what it took, and how old it is. None of them is needed. */
async function checkCandidate(candidate: Candidate, context: CheckContext): Promise<Finding> {
  const problem = await obstacle(candidate);
  if (problem !== null) return { state: 'pass', found: `not available: ${problem.reason}` };
  const { home, prove, signal } = context;
  const known = await rememberedVerdict(home, candidate);
  const verdict = prove && !known?.works ? await newVerdict(home, candidate, prove, signal) : known;
  if (!verdict) return { state: 'pass', found: 'not tried since the host has started; --prove tries it' };
  const { works, reason, ms, at } = verdict;
  return {
    state: works ? 'pass' : 'warn',
    found: `${works ? 'works' : 'does not work'}: ${reason}. Found out in ${Math.round(ms)} ms, ${ageOf(at)} ago`,
    ...(!works && {
      remedy: 'Not needed: another one is used. "forkd doctor --prove" tries it again; see docs/engines.md.',
    }),
  };
}

function ageOf(at: number): string {
  const seconds = Math.max(0, Math.round((Date.now() - at) / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

async function checkChoice(context: CheckContext): Promise<Finding> {
  const { engine, accelerator, reason } = await context.choice();
  if (accelerator === 'kvm') return { state: 'pass', found: `${engine} on kvm: ${reason}` };
  return {
    state: 'warn',
    found: `${engine} on tcg: ${reason}. Real microVMs, with slower guest code`,
    remedy: 'For kvm: use a host (or a nested guest) whose /dev/kvm boots Linux, and be in group kvm.',
  };
}

async function checkNative(shimBinary: string): Promise<Finding> {
  await access(shimBinary, constants.X_OK).catch((error: unknown) => {
    throw new EngineError('host_unfit', messageOf(error), {
      remedy: 'Build them: npm run build',
      cause: error,
    });
  });
  return { state: 'pass', found: shimBinary };
}

async function checkInjection(context: CheckContext): Promise<Finding> {
  const abilities = await context.abilities();
  if (abilities.injection) return { state: 'pass', found: 'memory of children is mapped, not copied' };
  return {
    state: 'warn',
    found: `not permitted: ${abilities.reason ?? 'unknown reason'}. Memory of children is copied: slower, and nothing is shared`,
    remedy:
      'Run the daemon as root, outside of containers that filter system calls (or with CAP_SYS_ADMIN and no filter).',
  };
}

async function checkMemory(): Promise<Finding> {
  const available = await availableMemory();
  const found = `${(available / GiB).toFixed(1)} GiB available, about ${Math.floor(available / CHILD_BYTES)} idle children`;
  if (available >= 2 * GiB) return { state: 'pass', found };
  return { state: 'warn', found, remedy: 'Templates of Debian need about 2 GiB to build.' };
}

async function checkOvercommit(): Promise<Finding> {
  const mode = (await readFile('/proc/sys/vm/overcommit_memory', 'utf8')).trim();
  if (mode !== '2') return { state: 'pass', found: `vm.overcommit_memory=${mode}` };
  return {
    state: 'warn',
    found: 'vm.overcommit_memory=2: every child is charged for all of its memory',
    remedy: 'sysctl vm.overcommit_memory=0',
  };
}

async function checkMappings(): Promise<Finding> {
  const limit = Number(await readFile('/proc/sys/vm/max_map_count', 'utf8'));
  if (limit >= 16_384) return { state: 'pass', found: `vm.max_map_count=${limit}` };
  return { state: 'warn', found: `vm.max_map_count=${limit}`, remedy: 'sysctl vm.max_map_count=65530' };
}

async function checkDisk(home: string): Promise<Finding> {
  const free = await freeBytes(home);
  const found = `${(free / GiB).toFixed(1)} GiB free under ${home}`;
  if (free >= 4 * GiB) return { state: 'pass', found };
  return {
    state: free >= GiB ? 'warn' : 'fail',
    found,
    remedy: 'Free space there, or set FORKD_HOME to a directory on a larger disk.',
  };
}

async function checkClock(shimBinary: string): Promise<Finding> {
  return { state: 'pass', found: `TSC at ${((await tscKhz(shimBinary)) / 1000).toFixed(1)} MHz` };
}

async function checkProgram(program: string, pkg: string): Promise<Finding> {
  const path = await findProgram(program, ['/usr/sbin', '/sbin']);
  if (path !== null) return { state: 'pass', found: path };
  return {
    state: 'warn',
    found: 'not installed; needed to build templates',
    remedy: `apt-get install --no-install-recommends ${pkg}`,
  };
}

function checkPrivileges(): Finding {
  if (process.getuid?.() === 0) return { state: 'pass', found: 'root: VMMs run as a user of their own' };
  return {
    state: 'warn',
    found: 'not root: VMMs run as this user, templates of Debian are built in a user namespace',
    remedy: 'Run the daemon as root to separate VMMs from your own files.',
  };
}
