/** The daemon's log. */
import { closeSync, openSync, renameSync, statSync } from 'node:fs';
import { type DestinationStream, destination, type Logger, pino } from 'pino';

export type Log = Logger;

/** Size at which the log of earlier lives is put aside, in bytes. */
const rotateAt = 16 * 1024 * 1024;

/** Opens `path` for appending, mode 0600. A large one becomes `path.1` first. */
export function openLog(path: string, level = 'info'): Log {
  rotate(path);
  closeSync(openSync(path, 'a', 0o600));
  const stream = destination({ dest: path, append: true, sync: true });
  // A full disk costs lines, not the daemon.
  stream.on('error', () => undefined);
  return createLog(stream, level);
}

const levels = ['debug', 'info', 'warn', 'error'] as const;

/** The level that FORKD_LOG_LEVEL asks for; info without, and for a word that is none. */
export function logLevel(asked: string | undefined): (typeof levels)[number] {
  return levels.find((level) => level === asked) ?? 'info';
}

/** A log that writes JSON lines to `stream`. Headers are never part of a line: they carry tokens. */
export function createLog(stream: DestinationStream, level = 'info'): Log {
  return pino({ level, base: { pid: process.pid }, timestamp: pino.stdTimeFunctions.isoTime }, stream);
}

/** A log that goes nowhere. */
export function silentLog(): Log {
  return pino({ level: 'silent' });
}

function rotate(path: string): void {
  try {
    if (statSync(path).size > rotateAt) renameSync(path, `${path}.1`);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
}
