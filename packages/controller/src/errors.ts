/** From whatever was thrown to the answer that a client gets. */
import {
  type ErrorBody,
  type ErrorCode,
  type ErrorValues,
  errorBody,
  errorRow,
  quoteValue,
} from '@forkd/api';
import {
  AgentError,
  type AgentErrorCode,
  EngineError,
  type ErrorCode as EngineErrorCode,
  hostFault,
  messageOf,
} from '@forkd/engine';

/** An error of the daemon, by its row in the table of errors. */
export class ApiError extends Error {
  readonly code: ErrorCode;
  readonly body: ErrorBody;

  constructor(
    code: ErrorCode,
    values: ErrorValues = {},
    more: { details?: Record<string, unknown>; cause?: unknown } = {},
  ) {
    const body = errorBody(code, values, more.details);
    super(body.error, more.cause === undefined ? undefined : { cause: more.cause });
    this.name = 'ApiError';
    this.code = code;
    this.body = body;
  }

  get status(): number {
    return errorRow(this.code).status;
  }
}

/** What the failed call was about, for messages. */
export interface ErrorContext {
  sandbox?: string;
  /** The path, command or port in question. */
  value?: unknown;
}

/**
 * What each code of the agent means to a client. In `command` context, `not_found` is the command; elsewhere it is a file.
 */
export const agentErrorMap: Readonly<Record<AgentErrorCode, ErrorCode>> = {
  not_found: 'file_not_found',
  permission: 'permission_denied',
  not_executable: 'command_not_executable',
  not_a_directory: 'not_a_directory',
  is_a_directory: 'is_a_directory',
  exists: 'file_exists',
  not_empty: 'directory_not_empty',
  no_space: 'guest_no_space',
  read_only: 'permission_denied',
  too_large: 'argument_too_large',
  too_long: 'guest_invalid',
  busy: 'busy',
  invalid: 'guest_invalid',
  unsupported: 'unsupported',
  no_such_user: 'guest_invalid',
  no_such_process: 'process_not_found',
  refused: 'connection_refused',
  loop: 'guest_invalid',
  timeout: 'timeout',
  no_memory: 'guest_io',
  io: 'guest_io',
  closed: 'guest_unreachable',
  unreachable: 'guest_unreachable',
  session_lost: 'guest_unreachable',
  protocol: 'guest_protocol',
  version: 'guest_protocol',
  aborted: 'cancelled',
  interpreter_died: 'guest_unreachable',
};

/** What each code of the engine means to a client: every one is a row of the table by the same name. */
const engineRow = (code: EngineErrorCode): ErrorCode => code;

/** Turns whatever was thrown into an error of the API. Defects become `internal`. */
export function toApiError(error: unknown, context: ErrorContext = {}): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof EngineError) return ofEngine(error);
  if (error instanceof AgentError) return ofAgent(error, context);
  if (error instanceof Error && error.name === 'AbortError')
    return new ApiError('cancelled', {}, { cause: error });
  const fault = hostFault(error);
  if (fault !== undefined) return ofEngine(fault);
  return new ApiError('internal', { problem: messageOf(error) }, { cause: error });
}

/** The engine's message and remedy were made where the facts were known: they replace those of the table. */
function ofEngine(error: EngineError): ApiError {
  const result = new ApiError(engineRow(error.code), {}, { cause: error });
  const body: ErrorBody = {
    error: error.message,
    code: error.code,
    remedy: error.remedy ?? defaultRemedy(error.code),
    ...(error.details && { details: error.details }),
  };
  Object.assign(result, { body, message: error.message });
  return result;
}

/** A remedy of the table that has no unfilled braces. */
function defaultRemedy(code: ErrorCode): string {
  const { remedy } = errorRow(code);
  return remedy.includes('{') ? 'See daemon.log in the state directory, and "forkd doctor".' : remedy;
}

function ofAgent(error: AgentError, context: ErrorContext): ApiError {
  const value = context.value === undefined ? 'the request' : quoteValue(context.value);
  const values = {
    value,
    sandbox: context.sandbox ?? '?',
    problem: error.message,
    what: context.value === undefined ? error.message : value,
    limit: 'its limit',
  };
  const details = error.errno === undefined ? undefined : { errno: error.errno };
  return new ApiError(agentErrorMap[error.code], values, { cause: error, ...(details && { details }) });
}

/**
 * An error that starting a command raised. There `not_found` is the program, or its working directory or "#!" interpreter: the
 * agent's message says which.
 */
export function commandError(
  error: unknown,
  sandbox: string,
  command: unknown,
  cwd: string | undefined,
): ApiError {
  if (error instanceof AgentError) {
    const value = quoteValue(command);
    const more = { cause: error, ...(error.errno !== undefined && { details: { errno: error.errno } }) };
    const problem = cwd === undefined ? error.message : `${error.message} (cwd ${quoteValue(cwd)})`;
    if (cwd !== undefined && error.message.startsWith('the working directory'))
      return new ApiError('guest_invalid', { value: quoteValue(cwd), problem: error.message }, more);
    switch (error.code) {
      case 'not_found':
        return new ApiError('command_not_found', { value, problem }, more);
      case 'permission':
      case 'not_executable':
        return new ApiError('command_not_executable', { value, problem }, more);
      case 'not_a_directory':
      case 'is_a_directory':
      case 'loop':
        return new ApiError('guest_invalid', { value, problem }, more);
      case 'too_large':
      case 'too_long':
        return new ApiError('argument_too_large', { problem }, more);
      default:
    }
  }
  return toApiError(error, { sandbox, value: command });
}
