/**
 * `@forkd/wire`: the frames between host and guest agent, as numbers. Pure data; the C header is generated from it.
 *
 * @packageDocumentation
 */
export * from './agent.js';
export * from './c-header.js';
export * from './shim.js';
