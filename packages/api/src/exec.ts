/** Commands and evaluation, collected in one answer. The streamed form is in stream.ts. */
import Type, { type Static, type TProperties } from 'typebox';
import { CString, closed, Env, TextEncoding, TimeoutSecs } from './common.js';

/** Seconds that a collected exec or an eval may last when the request does not say. */
export const defaultTimeoutSecs = 30;

/** Bytes of stdout and of stderr that a collected exec answers by default; the rest is counted, not kept. */
export const defaultMaxOutputBytes = 8 * 1024 * 1024;

/** How a command is given: `args`, or `shell` for `/bin/sh -c`. Exactly one of them. */
export const commandFields = {
  args: Type.Optional(
    Type.Array(CString, { minItems: 1, maxItems: 65_536, description: 'Program and arguments.' }),
  ),
  shell: Type.Optional(
    Type.String({ minLength: 1, pattern: '^[^\\u0000]*$', description: 'Text for /bin/sh -c.' }),
  ),
  env: Type.Optional(Env),
  cwd: Type.Optional(
    Type.String({ minLength: 1, pattern: '^[^\\u0000]*$', description: 'Working directory in the guest.' }),
  ),
  user: Type.Optional(
    Type.String({ minLength: 1, pattern: '^[^\\u0000]*$', description: 'User name or uid in the guest.' }),
  ),
  timeout_secs: Type.Optional(TimeoutSecs),
} satisfies TProperties;

export const ExecRequest = closed(
  {
    ...commandFields,
    stdin: Type.Optional(Type.String({ description: 'Given to the command, then EOF. Absent: /dev/null.' })),
    encoding: Type.Optional(TextEncoding),
    stdin_encoding: Type.Optional(TextEncoding),
    max_output_bytes: Type.Optional(Type.Integer({ minimum: 0, maximum: 64 * 1024 * 1024 })),
  },
  { $id: 'ExecRequest' },
);
export type ExecRequest = Static<typeof ExecRequest>;

export const outcomeKinds = ['exited', 'signaled', 'timeout', 'oom', 'cancelled'] as const;

/** How a process ended. Only `exited` has a code of its own. */
export const Outcome = Type.Object(
  {
    kind: Type.Enum(outcomeKinds),
    code: Type.Optional(Type.Integer({ description: 'Of kind exited.' })),
    signal: Type.Optional(Type.String({ description: 'Of kind signaled, such as SIGTERM.' })),
  },
  { $id: 'Outcome' },
);
export type Outcome = Static<typeof Outcome>;

export const ExecResponse = Type.Object(
  {
    stdout: Type.String(),
    stderr: Type.String(),
    exit_code: Type.Integer({
      description:
        'Code of the command; as a shell says it otherwise: 128 + signal, 124 for a time-out, 137 for out of memory, 130 for cancelled.',
    }),
    outcome: Outcome,
    encoding: TextEncoding,
    stdout_truncated_bytes: Type.Integer({
      description: 'Bytes that were left out at the end, beyond max_output_bytes.',
    }),
    stderr_truncated_bytes: Type.Integer(),
    duration_ms: Type.Number(),
  },
  { $id: 'ExecResponse' },
);
export type ExecResponse = Static<typeof ExecResponse>;

export const EvalRequest = closed(
  {
    code: Type.String({ maxLength: 1_000_000 }),
    timeout_secs: Type.Optional(TimeoutSecs),
    interpreter: Type.Optional(
      Type.String({ pattern: '^[a-z][a-z0-9_-]{0,31}$', description: 'Default: the first of the template.' }),
    ),
    stream: Type.Optional(Type.Boolean({ description: 'Answer ndjson: EvalEvent lines.' })),
  },
  { $id: 'EvalRequest' },
);
export type EvalRequest = Static<typeof EvalRequest>;

export const EvalException = Type.Object({
  type: Type.String(),
  message: Type.String(),
  traceback: Type.String(),
});
export type EvalException = Static<typeof EvalException>;

export const EvalResponse = Type.Object(
  {
    result: Type.Union([Type.String(), Type.Null()], {
      description: 'repr of the last value; null when it is None or a statement.',
    }),
    error: Type.Union([Type.String(), Type.Null()], { description: '"Type: message" of what was raised.' }),
    exit_code: Type.Integer({ description: '0, or 1 when something was raised, or 124 for a time-out.' }),
    stdout: Type.String(),
    stderr: Type.String(),
    exception: Type.Union([EvalException, Type.Null()]),
    timed_out: Type.Boolean(),
    duration_ms: Type.Number(),
  },
  { $id: 'EvalResponse' },
);
export type EvalResponse = Static<typeof EvalResponse>;

/** A line of a streamed eval. The last one is `result` or `failed`. */
export const EvalEvent = Type.Union(
  [
    Type.Object({
      type: Type.Literal('output'),
      stream: Type.Union([Type.Literal('stdout'), Type.Literal('stderr')]),
      text: Type.String(),
    }),
    Type.Object({ type: Type.Literal('result'), result: EvalResponse }),
    Type.Object({ type: Type.Literal('failed'), error: Type.Ref('ErrorBody') }),
  ],
  { $id: 'EvalEvent' },
);

/** The exit code that stands for an outcome where only a number can be given, as shells have it. */
export function exitCodeOf(
  outcome: Outcome,
  signalNumbers: Readonly<Record<string, number>> = signals,
): number {
  switch (outcome.kind) {
    case 'exited':
      return outcome.code ?? 1;
    case 'signaled':
      return 128 + (signalNumbers[outcome.signal ?? ''] ?? 0);
    case 'timeout':
      return 124;
    case 'oom':
      return 137;
    case 'cancelled':
      return 130;
  }
  return outcome.kind satisfies never;
}

/** Signal numbers of Linux on x86-64 and arm64. */
export const signals: Readonly<Record<string, number>> = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGILL: 4,
  SIGTRAP: 5,
  SIGABRT: 6,
  SIGBUS: 7,
  SIGFPE: 8,
  SIGKILL: 9,
  SIGUSR1: 10,
  SIGSEGV: 11,
  SIGUSR2: 12,
  SIGPIPE: 13,
  SIGALRM: 14,
  SIGTERM: 15,
  SIGSTKFLT: 16,
  SIGCHLD: 17,
  SIGCONT: 18,
  SIGSTOP: 19,
  SIGTSTP: 20,
  SIGTTIN: 21,
  SIGTTOU: 22,
  SIGURG: 23,
  SIGXCPU: 24,
  SIGXFSZ: 25,
  SIGVTALRM: 26,
  SIGPROF: 27,
  SIGWINCH: 28,
  SIGIO: 29,
  SIGPWR: 30,
  SIGSYS: 31,
};
