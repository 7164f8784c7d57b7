/**
 * `@forkd/controller`: the daemon. Started as a program by the CLI (`main.js`), or embedded by {@link serve}.
 *
 * @packageDocumentation
 */
export { type Daemon, type OpenEngine, type ServeOptions, serve, version } from './daemon.js';
export { ApiError, toApiError } from './errors.js';
export { createLog, type Log, openLog, silentLog } from './log.js';
