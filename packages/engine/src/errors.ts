import type { ErrorCode } from './error-codes.js';

export interface EngineErrorOptions {
  /** What to do about it. */
  remedy?: string;
  cause?: unknown;
  /** Facts for programs; JSON. */
  details?: Record<string, unknown>;
}

/**
 * A failure of the engine. `code` says what kind it is (the API's error table has its status), `message` what happened to what,
 * `remedy` what to do.
 */
export class EngineError extends Error {
  readonly code: ErrorCode;
  readonly remedy: string | undefined;
  readonly details: Record<string, unknown> | undefined;

  constructor(code: ErrorCode, message: string, options: EngineErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'EngineError';
    this.code = code;
    this.remedy = options.remedy;
    this.details = options.details;
  }
}

/** The text of whatever was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
