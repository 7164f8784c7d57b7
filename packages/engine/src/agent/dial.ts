import type { Duplex } from 'node:stream';
import { duplexOf } from './channels.js';
import type { Conversation } from './conversation.js';
import { AgentError } from './errors.js';
import { FieldWriter } from './fields.js';
import { refuseAborted } from './settle.js';

/** Longer than the guest tries to connect. */
const DIAL_DEADLINE_MS = 60_000;

/** A TCP connection inside the guest, each direction with an end of its own. */
export async function dialPort(c: Conversation, port: number, signal?: AbortSignal): Promise<Duplex> {
  refuseAborted('dial', signal);
  if (!Number.isInteger(port) || port < 1 || port > 65535)
    throw new AgentError('invalid', `a port is from 1 to 65535, got ${port}`);
  const request = c.begin('DIAL', new FieldWriter().u32('port', port), {
    input: true,
    outputs: [{ channel: 1 }],
  });
  await c.wait(request, request.answered, { signal, deadlineMs: DIAL_DEADLINE_MS });
  const gone = (): void => c.reset(request, new AgentError('closed', 'the connection was closed'));
  const duplex = duplexOf(request.output(1), request.input!, gone);
  // The connection may fail after its first direction has ended: that is not a clean close.
  request.done.catch((error: Error) => duplex.destroy(error));
  return duplex;
}
