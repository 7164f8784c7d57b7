/** The host's side of the conversation with the guest agent: sessions that survive broken connections. */
export { AgentError, type AgentErrorCode, agentErrorCodes } from './errors.js';
export { openInterpreter } from './interpreter.js';
export { openAgentSession } from './session.js';
export type * from './types.js';
