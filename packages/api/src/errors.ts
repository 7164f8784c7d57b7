/**
 * Every error that forkd reports, in one table: its code, HTTP status, what kind of error it is for the caller,
 * its message and its remedy.
 *
 * The daemon builds error bodies from this table, the SDK picks the class of the error it throws by `kind`, and the
 * CLI picks its exit code by it. A message template names its values in braces: `{name}`. An error that the engine
 * raised brings a message and a remedy of its own, made where the facts were known; the table then gives status and kind.
 */
import Type, { type Static } from 'typebox';

/**
 * What the caller can do next.
 *
 * `invalid`: change the request. `unauthorized`: present a token. `not_found`: use another name. `conflict`: change
 * the state of the thing first. `busy`: try the same again later. `refused`: this host or this sandbox cannot do it.
 * `timeout`: it took too long. `unreachable`: daemon or guest does not answer. `cancelled`: the caller gave up.
 * `failed`: forkd or the guest broke; look into the logs.
 */
export const errorKinds = [
  'invalid',
  'unauthorized',
  'not_found',
  'conflict',
  'busy',
  'refused',
  'timeout',
  'unreachable',
  'cancelled',
  'failed',
] as const;
export type ErrorKind = (typeof errorKinds)[number];

/** One row of the table. */
export interface ErrorRow {
  /** HTTP status of an answer that carries this error. */
  readonly status: number;
  readonly kind: ErrorKind;
  /** Message template; `{name}` is replaced by a value. */
  readonly message: string;
  /** What to do about it; a template too. */
  readonly remedy: string;
}

export const errorTable = {
  // --- the request
  invalid_argument: {
    status: 400,
    kind: 'invalid',
    message: '{field}: {problem}',
    remedy: 'Correct the value and send the request again.',
  },
  unknown_field: {
    status: 400,
    kind: 'invalid',
    message: 'unknown field {value}',
    remedy: 'Remove the field, or look for its right name: {known}.',
  },
  invalid_json: {
    status: 400,
    kind: 'invalid',
    message: 'the request body is not valid JSON: {problem}',
    remedy: 'Send a JSON object with "content-type: application/json".',
  },
  unsupported: {
    status: 400,
    kind: 'invalid',
    message: '{what} is not supported',
    remedy: 'Leave it out; see docs/limits.md for what this version can do.',
  },
  unsupported_media_type: {
    status: 415,
    kind: 'invalid',
    message: 'content type {value} is not supported',
    remedy: 'Send JSON as application/json, file content as application/octet-stream.',
  },
  payload_too_large: {
    status: 413,
    kind: 'invalid',
    message: 'the request body is larger than {limit} bytes',
    remedy: 'Send less; put large content into the sandbox with PUT /v1/sandboxes/ID/files.',
  },
  route_not_found: {
    status: 404,
    kind: 'not_found',
    message: 'there is no {method} {path}',
    remedy: 'See /openapi.json for the routes of this daemon.',
  },
  unauthorized: {
    status: 401,
    kind: 'unauthorized',
    message: '{problem}',
    remedy: 'Send "Authorization: Bearer TOKEN" with the content of the token file of the daemon.',
  },
  forbidden_host: {
    status: 403,
    kind: 'unauthorized',
    message: 'the Host header {value} does not name this daemon',
    remedy: 'Connect by the address that the daemon is bound to, such as 127.0.0.1:8889.',
  },
  forbidden_origin: {
    status: 403,
    kind: 'unauthorized',
    message: 'requests of web pages are refused (Origin {value})',
    remedy: 'Call forkd from a program of yours, not from a page in a browser.',
  },
  // --- names
  snapshot_not_found: {
    status: 404,
    kind: 'not_found',
    message: 'there is no snapshot with the tag or id {value}',
    remedy: 'List the snapshots with "forkd snapshot ls"; build a template with "forkd template build NAME".',
  },
  sandbox_not_found: {
    status: 404,
    kind: 'not_found',
    message: 'there is no sandbox {value}',
    remedy: 'List the sandboxes with "forkd ls".',
  },
  template_not_found: {
    status: 404,
    kind: 'not_found',
    message: 'there is no template {value}',
    remedy: 'List the templates with "forkd template ls"; a template file is given by its path.',
  },
  process_not_found: {
    status: 404,
    kind: 'not_found',
    message: 'there is no process {value} in sandbox {sandbox}',
    remedy: 'List its processes with GET /v1/sandboxes/{sandbox}/processes.',
  },
  interpreter_not_found: {
    status: 409,
    kind: 'conflict',
    message: 'sandbox {sandbox} has no {value} interpreter',
    remedy: 'Fork from a template that declares "interpreters: [{value}]", or use exec.',
  },
  // --- states
  tag_exists: {
    status: 409,
    kind: 'conflict',
    message: 'the tag {value} exists',
    remedy: 'Choose another tag, or remove that snapshot first.',
  },
  snapshot_in_use: {
    status: 409,
    kind: 'conflict',
    message: 'snapshot {value} is in use by {dependents}',
    remedy: 'Remove these first{how}',
  },
  snapshot_not_ready: {
    status: 409,
    kind: 'conflict',
    message: 'snapshot {value} is {state}',
    remedy: 'Wait until it is ready, or build it again.',
  },
  snapshot_corrupt: {
    status: 409,
    kind: 'refused',
    message: 'snapshot {value} is damaged: {problem}',
    remedy: 'Build its template again: forkd template build NAME.',
  },
  snapshot_incompatible: {
    status: 409,
    kind: 'refused',
    message: 'snapshot {value} cannot run on this host: {problem}',
    remedy: 'Build its template again on this host: forkd template build NAME.',
  },
  sandbox_exited: {
    status: 409,
    kind: 'conflict',
    message: 'sandbox {value} has exited: {reason}',
    remedy: 'Read "forkd logs {value}", remove it with "forkd rm {value}" and fork another.',
  },
  sandbox_not_running: {
    status: 409,
    kind: 'conflict',
    message: 'sandbox {value} is {state}, not running',
    remedy: 'Wait until its state has changed; see "forkd show {value}".',
  },
  build_cancelled: {
    status: 499,
    kind: 'cancelled',
    message: 'the build of template {value} was cancelled',
    remedy: 'Start it again; finished stages are kept.',
  },
  cancelled: {
    status: 499,
    kind: 'cancelled',
    message: 'the request was cancelled by its caller',
    remedy: 'Send it again.',
  },
  // --- capacity
  busy: {
    status: 503,
    kind: 'busy',
    message: '{what} is busy',
    remedy: 'Try again in a moment.',
  },
  shutting_down: {
    status: 503,
    kind: 'busy',
    message: 'the daemon is shutting down',
    remedy: 'Start it again with "forkd serve"; sandboxes live on meanwhile.',
  },
  insufficient_memory: {
    status: 507,
    kind: 'refused',
    message: 'not enough memory: {problem}',
    remedy: 'Fork fewer children, or remove sandboxes that are no longer needed.',
  },
  insufficient_disk: {
    status: 507,
    kind: 'refused',
    message: 'not enough disk space under {path}: {problem}',
    remedy: 'Free space there, or set FORKD_HOME to a directory on a larger disk.',
  },
  limit_reached: {
    status: 507,
    kind: 'refused',
    message: 'a limit of this host is reached: {problem}',
    remedy:
      'Remove sandboxes that are no longer needed, or raise the limit of the daemon and start it again: open files (ulimit -n), processes (ulimit -u, pids.max of its control group).',
  },
  fork_failed: {
    status: 500,
    kind: 'failed',
    message: 'none of {n} children could be started: {problem}',
    remedy: 'See details.failures for the reason of each child, and "forkd doctor".',
  },
  // --- this host
  host_unfit: {
    status: 501,
    kind: 'refused',
    message: 'this host lacks something that forkd needs: {problem}',
    remedy: 'Run "forkd doctor" and do what it says.',
  },
  home_unusable: {
    status: 500,
    kind: 'refused',
    message: 'the state directory {path} cannot be used: {problem}',
    remedy: 'Make it writable for this user, or set FORKD_HOME to another directory.',
  },
  daemon_running: {
    status: 409,
    kind: 'conflict',
    message: 'a daemon with pid {pid} has the state directory {path} already',
    remedy: 'Use it as it is, end it with "kill {pid}", or set FORKD_HOME to another directory.',
  },
  address_unusable: {
    status: 409,
    kind: 'conflict',
    message: 'cannot listen on {where}: {problem}',
    remedy: 'Choose another address with --bind HOST:PORT, or leave it out to use the unix socket.',
  },
  // --- commands and files of a guest
  command_not_found: {
    status: 400,
    kind: 'invalid',
    message: 'command {value} is not in the sandbox',
    remedy: 'Check the name and PATH, or add the package to the template.',
  },
  command_not_executable: {
    status: 400,
    kind: 'invalid',
    message: 'command {value} cannot be executed: {problem}',
    remedy: 'Set its execute permission (chmod +x) and check its format or "#!" line.',
  },
  guest_invalid: {
    status: 400,
    kind: 'invalid',
    message: 'the guest refused {value}: {problem}',
    remedy: 'Check command, arguments, env, cwd and user.',
  },
  argument_too_large: {
    status: 413,
    kind: 'invalid',
    message: 'arguments or environment are larger than the guest can take: {problem}',
    remedy: 'Linux takes 128 KiB per argument and variable; pass larger data by a file or stdin.',
  },
  file_not_found: {
    status: 404,
    kind: 'not_found',
    message: '{value}: no such file or directory in sandbox {sandbox}',
    remedy: 'Check the path; it is a path inside the guest.',
  },
  file_exists: {
    status: 409,
    kind: 'conflict',
    message: '{value} exists in sandbox {sandbox}',
    remedy: 'Remove it first, or use another path.',
  },
  not_a_directory: {
    status: 400,
    kind: 'invalid',
    message: '{value} is not a directory, or goes through a file',
    remedy: 'Check the path.',
  },
  is_a_directory: {
    status: 400,
    kind: 'invalid',
    message: '{value} is a directory',
    remedy: 'Name a file; list directories with the list call.',
  },
  directory_not_empty: {
    status: 409,
    kind: 'conflict',
    message: '{value} is not empty',
    remedy: 'Remove its content first, or remove it recursively.',
  },
  not_a_file: {
    status: 400,
    kind: 'invalid',
    message: '{value} is not a regular file',
    remedy: 'Devices, sockets and pipes of a guest are reached by commands in it.',
  },
  permission_denied: {
    status: 403,
    kind: 'refused',
    message: '{value}: permission denied in the guest',
    remedy: 'Check owner and mode, or run as another user.',
  },
  guest_no_space: {
    status: 507,
    kind: 'refused',
    message: 'the disk of sandbox {sandbox} is full ({value})',
    remedy: 'Delete files in the sandbox, or build its template with a larger "disk".',
  },
  guest_io: {
    status: 502,
    kind: 'failed',
    message: '{value}: input/output error in the guest: {problem}',
    remedy: 'Read "forkd logs {sandbox}".',
  },
  guest_unreachable: {
    status: 502,
    kind: 'unreachable',
    message: 'the agent of sandbox {sandbox} does not answer: {problem}',
    remedy: 'Read "forkd logs {sandbox}"; remove the sandbox if it stays so.',
  },
  guest_protocol: {
    status: 502,
    kind: 'failed',
    message: 'the agent of sandbox {sandbox} broke its protocol: {problem}',
    remedy: 'Report this with the output of "forkd logs {sandbox}".',
  },
  connection_refused: {
    status: 502,
    kind: 'refused',
    message: 'nothing in sandbox {sandbox} listens on port {value}',
    remedy: 'Start the server in the sandbox first.',
  },
  // --- machinery
  timeout: {
    status: 504,
    kind: 'timeout',
    message: '{what} took longer than {limit}',
    remedy: 'Raise the time limit, or see why it is slow.',
  },
  build_failed: {
    status: 422,
    kind: 'failed',
    message: 'building template {value} failed in step {step}: {problem}',
    remedy: 'Read the log {log}.',
  },
  template_invalid: {
    status: 400,
    kind: 'invalid',
    message: 'template {value} is not valid: {problem}',
    remedy: 'Correct the template file; docs/templates.md has every field.',
  },
  vmm_failed: {
    status: 500,
    kind: 'failed',
    message: 'the virtual machine monitor failed: {problem}',
    remedy: 'See the logs, and "forkd doctor".',
  },
  engine_error: {
    status: 500,
    kind: 'failed',
    message: '{problem}',
    remedy: 'See daemon.log in the state directory, and "forkd doctor".',
  },
  internal: {
    status: 500,
    kind: 'failed',
    message: 'forkd has a defect: {problem}',
    remedy: 'Report this with daemon.log of the state directory.',
  },
  // --- known only to clients
  daemon_unreachable: {
    status: 503,
    kind: 'unreachable',
    message: 'no daemon answers at {where}: {problem}',
    remedy: 'Start it with "forkd serve".',
  },
  connection_lost: {
    status: 502,
    kind: 'unreachable',
    message: 'the connection to the daemon broke: {problem}',
    remedy: 'Check that the daemon runs; the sandbox is not harmed by this.',
  },
  bad_answer: {
    status: 502,
    kind: 'failed',
    message: "the daemon at {where} gave an answer that is not forkd's: {problem}",
    remedy: 'Check the address, and that client and daemon are of the same version.',
  },
} as const satisfies Record<string, ErrorRow>;

export type ErrorCode = keyof typeof errorTable;

/** Whether `code` is in the table. */
export function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(errorTable, code);
}

/** The row of a code, typed loosely for those who look up a code that they were handed. */
export function errorRow(code: ErrorCode): ErrorRow {
  return errorTable[code];
}

export const ErrorBody = Type.Object(
  {
    error: Type.String({ description: 'Message for people; names the offending value.' }),
    code: Type.String({ description: 'Code for programs, one of the error table.' }),
    remedy: Type.String({ description: 'What to do about it.' }),
    details: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  },
  { $id: 'ErrorBody', description: 'What every 4xx and 5xx answer carries.' },
);
export type ErrorBody = Static<typeof ErrorBody>;

/** Values for the braces of a template. */
export type ErrorValues = Record<string, string | number>;

/**
 * Fills a template. Strings are quoted when they hold anything that could be misread in a line of text
 * (spaces at an end, newlines, other control characters), and cut when longer than 200 characters.
 *
 * @example fill('no sandbox {value}', { value: 'sb-1' }) // 'no sandbox sb-1'
 */
export function fillTemplate(template: string, values: ErrorValues): string {
  return template.replace(/\{(\w+)\}/g, (whole, name: string) => {
    const value = values[name];
    return value === undefined ? whole : String(value);
  });
}

/** Shows an arbitrary value in a message: as JSON, escaped, at most `max` characters. */
export function quoteValue(value: unknown, max = 120): string {
  let text: string;
  try {
    text = JSON.stringify(value) ?? String(value);
  } catch {
    text = String(value);
  }
  // JSON leaves DEL, C1 controls and bidirectional overrides alone; a terminal does not.
  text = text.replace(
    /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
  return text.length > max ? `${text.slice(0, max)}... (${text.length} characters)` : text;
}

/** Makes the body of an error answer from the table. */
export function errorBody(
  code: ErrorCode,
  values: ErrorValues = {},
  details?: Record<string, unknown>,
): ErrorBody {
  const row = errorTable[code];
  return {
    error: fillTemplate(row.message, values),
    code,
    remedy: fillTemplate(row.remedy, values),
    ...(details && { details }),
  };
}
