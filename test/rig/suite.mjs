/** The parity suite in the rig. */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { bundledResults, parityProgram } from '../parity/bundle.mjs';
import { boot, rigParts } from './boot.mjs';
import { keepLogs } from './machine.mjs';
import { rigDirectory } from './parts.mjs';
import { runRounds } from './rounds.mjs';
import { runIn } from './session.mjs';

/** V8's guard of its code pages costs a third of all time where page tables are emulated. */
const NODE_FLAGS = ['--no-write-protect-code-memory'];

const say = (text) => console.error(`rig: ${text}`);

/**
 * @param {readonly string[]} columns such as `qemu+kvm`
 * @param {readonly string[]} args for the suite
 * @param {number} seconds for all of it, boots included
 * @returns {Promise<number>} exit code
 */
export async function suiteInRig(columns, args, seconds) {
  const { Ledger, report, eventOf } = await bundledResults();
  const began = performance.now();
  const took = () => (performance.now() - began) / 1000;
  const ledger = new Ledger(columns);
  const parts = await rigParts(say);
  const onLine = (line) => {
    const event = eventOf(line);
    if (event) ledger.take(event);
    else console.log(line);
  };
  const round = async ({ titles, except }, at) => {
    const secs = Math.max(1, Math.ceil(seconds - took()));
    const command = [
      'node',
      ...NODE_FLAGS,
      parityProgram,
      '--emulated',
      '--events',
      '--secs',
      String(secs),
      ...args,
    ];
    command.push(...except.flatMap((key) => ['--except', key]), ...titles);
    return await inMachine(join(rigDirectory, `run-${process.pid}-${at + 1}`), parts, command, onLine);
  };
  const crashes = await runRounds({ ledger, round, say });
  const lateIsRed = !args.includes('--late-is-not-red');
  const good = report(ledger.columns, ledger.chosen ?? [], took(), lateIsRed);
  for (const { crash, log } of crashes) console.log(`the rig crashed in between: ${crash}; its logs: ${log}`);
  return good ? 0 : 1;
}

/**
 * Boots a machine and runs a command in it.
 *
 * @param {string} dir
 * @param {Awaited<ReturnType<typeof rigParts>>} parts
 * @param {readonly string[]} command
 * @param {(line: string) => void} onLine
 * @returns {Promise<{crash: string | null, log: string}>} how the machine crashed; null where the command came to its end
 */
async function inMachine(dir, parts, command, onLine) {
  let machine;
  try {
    machine = await boot(dir, parts, say);
  } catch (error) {
    return { crash: error.message, log: keepLogs(dir) };
  }
  const over = new AbortController();
  const done = runIn(dir, command, { onLine, signal: over.signal }).then(
    (code) => ({ code, crash: null }),
    // Its agent has not answered for minutes, or cannot start a process.
    (error) => ({ code: 1, crash: `it does not answer: ${error.message}` }),
  );
  const gone = machine.ended.then((how) => ({ code: 1, crash: how }));
  try {
    const { code, crash } = await Promise.race([done, gone]);
    if (code === 0) rmSync(dir, { recursive: true, force: true });
    else keepLogs(dir);
    return { crash, log: dir };
  } finally {
    over.abort();
    await machine.kill();
  }
}
