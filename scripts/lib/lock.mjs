/** A lock between processes that cannot go stale: the kernel holds it for a child that ends when we do. */
import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { Failure } from './run.mjs';

/**
 * Runs `body` while holding an exclusive flock on `file`.
 *
 * @template T
 * @param {string} file made when missing; stays, empty
 * @param {number} seconds how long to wait for another holder
 * @param {() => Promise<T>} body
 * @returns {Promise<T>}
 */
export async function withLock(file, seconds, body) {
  mkdirSync(dirname(file), { recursive: true });
  const holder = await acquire(file, seconds);
  try {
    return await body();
  } finally {
    holder.stdin.end();
  }
}

function acquire(file, seconds) {
  return new Promise((resolve, reject) => {
    // `cat` ends at the end of its stdin, which the kernel closes even when this process is killed.
    // A session of its own: ctrl-C must not release the lock before our own children have ended.
    const args = ['-x', file, 'sh', '-c', 'echo locked; exec cat >/dev/null'];
    const holder = spawn('flock', args, { stdio: ['pipe', 'pipe', 'inherit'], detached: true });
    const notice = setTimeout(
      () => console.log(`waiting for another set-up or build (lock ${file}) ...`),
      1000,
    );
    const deadline = setTimeout(() => {
      // The holder is the leader of its group; flock itself may wait in the kernel.
      process.kill(-holder.pid, 'SIGKILL');
      reject(
        new Failure(
          `${file} has been locked by another set-up or build for ${seconds} s`,
          'end that one, then try again',
        ),
      );
    }, seconds * 1000);
    const settle = () => {
      clearTimeout(notice);
      clearTimeout(deadline);
    };
    holder.on('error', (error) => {
      settle();
      const hint = error.code === 'ENOENT' ? 'flock(1) is part of util-linux' : undefined;
      reject(new Failure(`cannot lock ${file}: ${error.message}`, hint));
    });
    holder.on('exit', () => {
      settle();
      reject(new Failure(`cannot lock ${file}`));
    });
    holder.stdin.on('error', () => {});
    holder.stdout.once('data', () => {
      settle();
      holder.stdout.resume();
      resolve(holder);
    });
  });
}
