/**
 * What can go wrong in the guest, as the caller sees it. `code` decides what to do next; `message` names
 * the offending value.
 */
export const agentErrorCodes = [
  'not_found',
  'permission',
  'not_executable',
  'not_a_directory',
  'is_a_directory',
  'exists',
  'not_empty',
  'no_space',
  'read_only',
  'too_large',
  'too_long',
  'busy',
  'invalid',
  'unsupported',
  'no_such_user',
  'no_such_process',
  'refused',
  'loop',
  'timeout',
  'no_memory',
  'io',
  'closed',
  // The ones below are made by the host side of the conversation.
  'unreachable',
  'session_lost',
  'protocol',
  'version',
  'aborted',
  'interpreter_died',
] as const;

export type AgentErrorCode = (typeof agentErrorCodes)[number];

/** A refusal or failure of the guest agent, or of the connection to it. */
export class AgentError extends Error {
  readonly code: AgentErrorCode;
  /** Name of the guest's errno where one exists, such as `ENOSPC`. */
  readonly errno?: string;

  constructor(code: AgentErrorCode, message: string, options?: { errno?: string; cause?: unknown }) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'AgentError';
    this.code = code;
    if (options?.errno !== undefined) this.errno = options.errno;
  }
}
