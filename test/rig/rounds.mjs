/** The suite in a machine whose kernel may crash: booted anew, a few times, for what has not been judged. */

/** How often it is booted anew. */
export const REBOOTS = 2;

/**
 * @param {object} run
 * @param {import('../parity/ledger.ts').Ledger} run.ledger
 * @param {(left: import('../parity/ledger.ts').Left, round: number) => Promise<{crash: string | null, log: string}>} run.round boots a machine
 *   and runs in it what is left, telling the ledger. Answers how the machine crashed, null where the suite came to its end by itself, and where
 *   its logs are
 * @param {(text: string) => void} run.say
 * @returns {Promise<{crash: string, log: string}[]>} all crashes
 */
export async function runRounds({ ledger, round, say }) {
  const crashes = [];
  for (let at = 0; at <= REBOOTS; at++) {
    const left = ledger.left();
    if (left === null) break;
    const { crash, log } = await round(left, at);
    if (crash === null) break;
    crashes.push({ crash, log });
    const running = ledger.crashed(crash);
    say(`the rig is gone, which says nothing of forkd: ${crash}; its logs: ${log}`);
    if (running !== undefined) say(`it ran ${running}`);
    say(at < REBOOTS ? 'booting it anew for what is left' : `it was booted ${at + 1} times: no more`);
  }
  return crashes;
}
