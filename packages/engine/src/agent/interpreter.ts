import { AgentError } from './errors.js';
import type { AgentSession, Interpreter, ProcessInfo } from './types.js';

/** Follows a warm interpreter. */
export async function openInterpreter(
  _session: AgentSession,
  _handle: number | ProcessInfo,
): Promise<Interpreter> {
  throw new AgentError('unsupported', 'not built yet');
}
