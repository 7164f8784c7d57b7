/** Errors that the SDK throws: one class for each thing that a caller can do next. */
import {
  type ErrorBody,
  type ErrorCode,
  type ErrorKind,
  type ErrorValues,
  errorBody,
  errorRow,
  isErrorCode,
} from '@forkd/api';

/** What every ForkdError is made of. */
export interface ForkdErrorFacts {
  code: string;
  message: string;
  remedy: string;
  /** HTTP status; for errors that arose in the client, that of the table. */
  status: number;
  kind: ErrorKind;
  details?: Record<string, unknown> | undefined;
  cause?: unknown;
}

/**
 * A request that failed. The subclass says what the caller can do next; `code` says exactly what happened, and `remedy` what to do.
 *
 * @example
 * try { await client.fork({ snapshot: 'python' }); }
 * catch (error) { if (error instanceof NotFoundError) await build('python'); else throw error; }
 */
export class ForkdError extends Error {
  readonly code: string;
  readonly remedy: string;
  readonly status: number;
  readonly kind: ErrorKind;
  /** Facts for programs, such as `failures` of a fork. */
  readonly details: Record<string, unknown> | undefined;

  constructor(facts: ForkdErrorFacts) {
    super(facts.message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = new.target.name;
    this.code = facts.code;
    this.remedy = facts.remedy;
    this.status = facts.status;
    this.kind = facts.kind;
    this.details = facts.details;
  }

  /** The error as the API writes it. */
  toBody(): ErrorBody {
    return {
      error: this.message,
      code: this.code,
      remedy: this.remedy,
      ...(this.details && { details: this.details }),
    };
  }
}

/** Change the request. */
export class InvalidError extends ForkdError {}
/** Present a token. */
export class UnauthorizedError extends ForkdError {}
/** Use another name. */
export class NotFoundError extends ForkdError {}
/** Change the state of the thing first. */
export class ConflictError extends ForkdError {}
/** Try the same again later. */
export class BusyError extends ForkdError {}
/** This host or this sandbox cannot do it. */
export class RefusedError extends ForkdError {}
/** It took too long. */
export class TimeoutError extends ForkdError {}
/** Daemon or guest does not answer. */
export class UnreachableError extends ForkdError {}
/** The caller gave up. */
export class CancelledError extends ForkdError {}
/** forkd or the guest broke; look into the logs. */
export class FailedError extends ForkdError {}

const classes: Record<ErrorKind, typeof ForkdError> = {
  invalid: InvalidError,
  unauthorized: UnauthorizedError,
  not_found: NotFoundError,
  conflict: ConflictError,
  busy: BusyError,
  refused: RefusedError,
  timeout: TimeoutError,
  unreachable: UnreachableError,
  cancelled: CancelledError,
  failed: FailedError,
};

/** Makes an error that arises in the client, from the table of errors. */
export function clientError(
  code: ErrorCode,
  values: ErrorValues,
  more: { cause?: unknown; details?: Record<string, unknown> } = {},
): ForkdError {
  const body = errorBody(code, values, more.details);
  return errorOfBody(body, errorRow(code).status, more.cause);
}

/** Makes the error that an error body stands for. A code that this version does not know is classed by the HTTP status. */
export function errorOfBody(body: ErrorBody, status?: number, cause?: unknown): ForkdError {
  const row = isErrorCode(body.code) ? errorRow(body.code) : undefined;
  const kind = row?.kind ?? kindOfStatus(status ?? 500);
  return new classes[kind]({
    code: body.code,
    message: body.error,
    remedy: body.remedy,
    status: status ?? row?.status ?? 500,
    kind,
    details: body.details,
    cause,
  });
}

/** Whether `value` has the shape of an error body. */
export function isErrorBody(value: unknown): value is ErrorBody {
  if (typeof value !== 'object' || value === null) return false;
  const body = value as Record<string, unknown>;
  return typeof body.error === 'string' && typeof body.code === 'string' && typeof body.remedy === 'string';
}

function kindOfStatus(status: number): ErrorKind {
  if (status === 401 || status === 403) return 'unauthorized';
  if (status === 404) return 'not_found';
  if (status === 409) return 'conflict';
  if (status === 499) return 'cancelled';
  if (status === 503 || status === 429) return 'busy';
  if (status === 504) return 'timeout';
  if (status === 507 || status === 501) return 'refused';
  return status >= 500 ? 'failed' : 'invalid';
}
