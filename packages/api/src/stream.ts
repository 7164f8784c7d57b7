/**
 * Streamed and interactive commands: a websocket at `/v1/sandboxes/:id/exec/stream`.
 *
 * ```text
 *   client                                daemon
 *     | -- {type:start, args, ...}   --->   |      or {type:attach, handle}
 *     | <-- {type:started, handle, pid} --- |      or {type:error, error}, then close 4000
 *     | -- binary 0x00 stdin bytes   --->   |      at most the credit that is open
 *     | <-- {type:credit, channel:stdin, bytes}
 *     | <-- binary 0x01 stdout bytes ------ |      at most the credit that is open
 *     | <-- binary 0x02 stderr bytes ------ |
 *     | -- {type:credit, channel:stdout, bytes} -->
 *     | -- {type:eof} {type:signal} {type:resize} -->
 *     | <-- {type:gap, channel, from, to}   |      attach only: output that nobody kept
 *     | <-- {type:exit, outcome, ...}  ---- |      after the last byte of output; then close 1000
 * ```
 *
 * Text frames are JSON; a binary frame is one byte of channel, then bytes. Every channel starts with a credit of
 * {@link initialCredit} bytes. A sender spends credit by the byte and waits when there is none; a receiver gives it back when the
 * bytes have been taken by whom they are for. So a slow reader of stdout holds up neither stderr nor a signal, and memory is
 * bounded on both sides.
 *
 * A client that goes away before the exit: a process that was started here is killed, unless `keep` was set; one that was attached
 * to goes on.
 */
import Type, { type Static } from 'typebox';
import { closed } from './common.js';
import { ErrorBody } from './errors.js';
import { commandFields, Outcome } from './exec.js';

/** First byte of a binary frame. */
export const channels = { stdin: 0, stdout: 1, stderr: 2 } as const;
export type ChannelName = keyof typeof channels;

/** Credit in bytes that each channel has at its start. */
export const initialCredit = 256 * 1024;
/** Largest payload of one binary frame, in bytes. */
export const maxFrameBytes = 64 * 1024;
/** Close code after an `error` message. */
export const errorCloseCode = 4000;

export const PtySize = closed({
  rows: Type.Integer({ minimum: 1, maximum: 65_535 }),
  cols: Type.Integer({ minimum: 1, maximum: 65_535 }),
});
export type PtySize = Static<typeof PtySize>;

export const StartMessage = closed({
  type: Type.Literal('start'),
  ...commandFields,
  pty: Type.Optional(PtySize),
  stdin: Type.Optional(
    Type.Boolean({ description: 'Whether stdin bytes will come. Absent or false: /dev/null.' }),
  ),
  keep: Type.Optional(Type.Boolean({ description: 'Leave the process running when this client goes away.' })),
});
export type StartMessage = Static<typeof StartMessage>;

export const AttachMessage = closed({
  type: Type.Literal('attach'),
  handle: Type.Integer({ minimum: 0 }),
});
export type AttachMessage = Static<typeof AttachMessage>;

const OutputChannel = Type.Union([Type.Literal('stdout'), Type.Literal('stderr')]);

/** What a client sends as text. The first message is `start` or `attach`. */
export const ClientMessage = Type.Union(
  [
    StartMessage,
    AttachMessage,
    closed({ type: Type.Literal('credit'), channel: OutputChannel, bytes: Type.Integer({ minimum: 1 }) }),
    closed({ type: Type.Literal('eof') }),
    closed({ type: Type.Literal('signal'), signal: Type.String({ pattern: '^SIG[A-Z0-9]+$' }) }),
    closed({ type: Type.Literal('resize'), ...PtySize.properties }),
  ],
  { $id: 'ExecClientMessage' },
);
export type ClientMessage = Static<typeof ClientMessage>;

/** What the daemon sends as text. */
export const ServerMessage = Type.Union(
  [
    Type.Object({
      type: Type.Literal('started'),
      handle: Type.Integer(),
      pid: Type.Integer(),
      stderr: Type.Boolean(),
    }),
    Type.Object({ type: Type.Literal('credit'), channel: Type.Literal('stdin'), bytes: Type.Integer() }),
    Type.Object({
      type: Type.Literal('gap'),
      channel: OutputChannel,
      from: Type.Integer(),
      to: Type.Integer(),
    }),
    Type.Object({
      type: Type.Literal('exit'),
      outcome: Outcome,
      exit_code: Type.Integer(),
      duration_ms: Type.Number(),
    }),
    Type.Object({ type: Type.Literal('error'), error: ErrorBody }),
  ],
  { $id: 'ExecServerMessage' },
);
export type ServerMessage = Static<typeof ServerMessage>;
