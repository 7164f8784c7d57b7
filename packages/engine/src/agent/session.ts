import { AgentError } from './errors.js';
import type { AgentSession, OpenSessionOptions } from './types.js';

/** Opens a session with the agent behind `dial`. */
export async function openAgentSession(_options: OpenSessionOptions): Promise<AgentSession> {
  throw new AgentError('unsupported', 'not built yet');
}
