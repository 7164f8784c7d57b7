/**
 * What a failed system call says of the host: that a disk is full, or that a limit is reached. Such a failure is nobody's defect, whatever
 * part of the engine it strikes, and has one code and one remedy.
 */
import { AgentError } from '../agent/errors.js';
import type { ErrorCode } from '../error-codes.js';
import { EngineError, messageOf } from '../errors.js';

interface Fault {
  code: ErrorCode;
  remedy: string;
  /** What it means, for people. */
  meaning: string;
}

const RAISE =
  'Remove sandboxes that are no longer needed, or raise the limit of the daemon and start it again: open files (ulimit -n), ' +
  'processes (ulimit -u, pids.max of its control group).';

const space: Fault = {
  code: 'insufficient_disk',
  remedy: 'Free space there, or set FORKD_HOME to a directory on a larger disk.',
  meaning: 'no space left on the disk',
};
const processes: Fault = {
  code: 'limit_reached',
  remedy: RAISE,
  meaning: 'no more processes or threads can be started',
};
const memory: Fault = {
  code: 'insufficient_memory',
  remedy: 'Remove sandboxes that are no longer needed, or add memory.',
  meaning: 'no more memory can be had',
};
const openFiles: Fault = { code: 'limit_reached', remedy: RAISE, meaning: 'no more files can be opened' };

const faults: Readonly<Record<string, Fault>> = {
  ENOSPC: space,
  EDQUOT: space,
  EMFILE: openFiles,
  ENFILE: openFiles,
  EAGAIN: processes,
  ENOMEM: memory,
};

const codes: ReadonlySet<ErrorCode> = new Set(Object.values(faults).map(({ code }) => code));

/** What programs print, in the words of the C library. */
const words: readonly [RegExp, string][] = [
  [/No space left on device/, 'ENOSPC'],
  [/Disk quota exceeded/, 'EDQUOT'],
  [/Too many open files/, 'EMFILE'],
  [/Resource temporarily unavailable/, 'EAGAIN'],
  [/Cannot allocate memory/, 'ENOMEM'],
];

/**
 * The fault of the host behind an error, as an error of its own.
 *
 * @param error anything with an errno: of Node, of a shim's refusal, or with the output of a program
 * @param what what failed: "a snapshot could not be written"
 * @param path where, when the error does not say
 * @returns undefined when the error tells of something else
 */
export function hostFault(error: unknown, what?: string, path?: string): EngineError | undefined {
  if (error instanceof EngineError && codes.has(error.code)) {
    const { errno, path: known } = error.details ?? {};
    // One of ours that did not know where it happened is told again.
    return errno === undefined || known !== undefined || path === undefined
      ? error
      : (hostFault(error.cause, what, path) ?? error);
  }
  const errno = errnoOf(error);
  const fault = errno === undefined ? undefined : faults[errno];
  if (errno === undefined || fault === undefined) return undefined;
  const named = (error as { path?: unknown }).path ?? path;
  const where = typeof named === 'string' ? named : undefined;
  const under = fault === space && where !== undefined ? ` under ${where}` : '';
  const message = `${what === undefined ? '' : `${what}: `}${fault.meaning}${under} (${messageOf(error)})`;
  return new EngineError(fault.code, message, {
    remedy: fault.remedy,
    details: { errno, ...(where !== undefined && { path: where }) },
    cause: error,
  });
}

function errnoOf(error: unknown): string | undefined {
  if (!(error instanceof Error) || error instanceof AgentError) return undefined; // A guest has limits and disks of its own.
  const { code, errno, details, output } = error as {
    code?: unknown;
    errno?: unknown;
    details?: { errno?: unknown };
    output?: unknown;
  };
  for (const name of [code, errno, details?.errno])
    if (typeof name === 'string' && name in faults) return name;
  const printed = typeof output === 'string' ? errnoIn(output) : undefined;
  return printed ?? (error instanceof EngineError ? errnoOf(error.cause) : undefined);
}

/** The errno that the last words of a program tell of. */
export function errnoIn(text: string): string | undefined {
  return words.find(([pattern]) => pattern.test(text))?.[1];
}
