/** Errors as people and scripts see them: two lines on stderr, and an exit code by kind. */
import type { ErrorKind } from '@forkd/api';
import { ForkdError } from '@forkd/sdk';

/**
 * Exit codes of errors that are forkd's own, by kind; as in sysexits.h where it has one. A remote command's code is passed through
 * and may be any. docs/cli.md has this table.
 */
export const exitCodes: Readonly<Record<ErrorKind, number>> = {
  invalid: 64,
  not_found: 66,
  unreachable: 69,
  failed: 70,
  conflict: 73,
  busy: 75,
  unauthorized: 77,
  refused: 78,
  timeout: 124,
  cancelled: 130,
};

/** An error that the CLI itself raises. */
export class CliError extends Error {
  readonly kind: ErrorKind;
  readonly hint: string | undefined;

  constructor(kind: ErrorKind, message: string, hint?: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'CliError';
    this.kind = kind;
    this.hint = hint;
  }
}

/** What is printed of an error. */
export interface Report {
  message: string;
  hint: string | undefined;
  code: string;
  exitCode: number;
  details?: Record<string, unknown> | undefined;
}

/** Turns whatever was thrown into what is printed of it. */
export function reportOf(error: unknown): Report {
  if (error instanceof ForkdError) {
    return {
      message: error.message,
      hint: error.remedy,
      code: error.code,
      exitCode: exitCodes[error.kind],
      details: error.details,
    };
  }
  if (error instanceof CliError) {
    return { message: error.message, hint: error.hint, code: error.kind, exitCode: exitCodes[error.kind] };
  }
  if (isSystemError(error)) {
    // A file or directory of ours: the message of Node names it.
    return { message: error.message, hint: undefined, code: error.code, exitCode: exitCodes.refused };
  }
  const message = error instanceof Error ? (error.stack ?? error.message) : String(error);
  return {
    message: `forkd has a defect: ${message}`,
    hint: 'report this with what you did',
    code: 'internal',
    exitCode: exitCodes.failed,
  };
}

function isSystemError(error: unknown): error is Error & { code: string } {
  return (
    error instanceof Error && 'code' in error && ('syscall' in error || /^ERR_FS_/.test(String(error.code)))
  );
}

/** Prints an error: two lines for people, one line of JSON for scripts that asked for it. */
export function printReport(report: Report, json: boolean): void {
  if (json) {
    const { message: error, code, hint: remedy, details } = report;
    process.stderr.write(`${JSON.stringify({ error, code, remedy, details })}\n`);
    return;
  }
  process.stderr.write(`error: ${report.message}\n`);
  if (report.hint) process.stderr.write(`hint: ${report.hint}\n`);
}
