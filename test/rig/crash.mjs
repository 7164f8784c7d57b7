/** Crashes of the rig's own kernel, told by its serial console. What crashes there is the machine that emulates KVM, nothing of forkd. */
import { existsSync, readFileSync, watch } from 'node:fs';
import { basename, dirname } from 'node:path';

/** How it ends; the kernel's command line makes each oops and lockup end so. */
const END = 'Kernel panic - not syncing';

/** How it begins. What a workqueue says of itself is no more than that it had to wait. */
const SIGNS =
  /(?:BUG: (?!workqueue)|PANIC: |Oops: |general protection fault|invalid opcode|stack segment|Kernel panic - ).+/;

/** From the end of a kernel until its machine is ended, should it not end by itself: the trace and the reboot take a moment, ms. */
const LAST_WORDS_MS = 10_000;

/**
 * The line with which a crash began.
 *
 * @param {string} text of a serial console
 * @returns {string | null} null where there was no crash
 */
export function crashIn(text) {
  return text.includes(END) ? SIGNS.exec(text)[0].trim() : null;
}

/**
 * @param {string} file a serial log, which may not be there yet
 * @returns {string | null} as {@link crashIn}
 */
export function crashInFile(file) {
  return existsSync(file) ? crashIn(readFileSync(file, 'latin1')) : null;
}

/**
 * Calls `crashed` once, a moment after a serial log has told of a crash.
 *
 * @param {string} file the log; its directory exists
 * @param {() => void} crashed
 * @param {number} [waitMs] for what comes with it
 * @returns {{close: () => void}}
 */
export function watchForCrash(file, crashed, waitMs = LAST_WORDS_MS) {
  let timer;
  const watcher = watch(dirname(file), (_, name) => {
    if (name === basename(file) && timer === undefined && crashInFile(file) !== null)
      timer = setTimeout(crashed, waitMs);
  });
  return {
    close: () => {
      watcher.close();
      clearTimeout(timer);
    },
  };
}
