/**
 * One daemon for a state directory.
 *
 * The lock is one of the kernel's (fcntl, taken by SQLite, as Node has no call for it): it goes with its process, whatever that dies of,
 * so there is no stale lock. The file stays; it must not be opened by other means in this process, which would drop the lock.
 */
import { readFileSync, statSync } from 'node:fs';
import Database from 'libsql';
import { ApiError } from './errors.js';

export interface Lock {
  release(): void;
}

/**
 * Takes the lock of a state directory, at once or not at all.
 *
 * @throws ApiError daemon_running with the holder's pid (details.pid), home_unusable when the file cannot be used.
 */
export function takeLock(path: string, home: string): Lock {
  let database: Database.Database | undefined;
  try {
    database = new Database(path, { timeout: 0 });
    database.exec('PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE');
  } catch (cause) {
    database?.close();
    const { code, message } = cause as { code?: string; message: string };
    if (code === 'SQLITE_BUSY') throw running(path, home, cause);
    throw new ApiError(
      'home_unusable',
      { path: home, problem: `its lock file ${path}: ${message}` },
      { cause },
    );
  }
  const held = database;
  return {
    release: () => {
      // Closing alone lets go of the file only when its statements have been collected.
      held.exec('ROLLBACK');
      held.close();
    },
  };
}

function running(path: string, home: string, cause: unknown): ApiError {
  const pid = holderOf(path);
  const values = { pid: pid ?? '(unknown, of another container)', path: home };
  return new ApiError('daemon_running', values, { cause, details: { pid } });
}

/** Who holds the lock, from /proc/locks: `1: POSIX ADVISORY WRITE PID MAJOR:MINOR:INODE START END`. Null when it is not of this pid namespace. */
function holderOf(path: string): number | null {
  try {
    const inode = `:${statSync(path).ino}`;
    for (const line of readFileSync('/proc/locks', 'utf8').split('\n')) {
      const fields = line.trim().split(/\s+/);
      if (fields[1] === 'POSIX' && fields[3] === 'WRITE' && fields[5]?.endsWith(inode)) {
        const pid = Number(fields[4]);
        if (pid > 0) return pid;
      }
    }
  } catch {
    // Without /proc/locks the message is poorer, no more.
  }
  return null;
}
