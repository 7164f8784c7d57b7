/**
 * `@forkd/api`: the REST API of forkd as data. Schemas of requests, answers, events and errors, from which the daemon validates
 * and the SDK is typed. Runs anywhere, also in a browser.
 *
 * @packageDocumentation
 */
export * from './branch.js';
export * from './common.js';
export * from './errors.js';
export * from './exec.js';
export * from './files.js';
export * from './home.js';
export * from './host.js';
export * from './routes.js';
export * from './sandboxes.js';
export * from './snapshots.js';
export * from './stream.js';
export * from './templates.js';
