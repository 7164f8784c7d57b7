/** For a program that runs the suite in a machine that may crash. */
export { eventOf } from './events.js';
export { Ledger } from './ledger.js';
export { report } from './report.js';
