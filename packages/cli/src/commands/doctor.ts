import { Command } from 'commander';
import { action } from '../context.js';
import { localChecks } from '../doctor/local.js';
import { type Check, checkDaemon } from '../doctor/remote.js';
import type { Output } from '../output.js';

/** `forkd doctor`: every prerequisite, and what mends it. */
export function doctorCommand(): Command {
  const command = new Command('doctor')
    .description('check every prerequisite, and say what mends it')
    .option('--prove', 'also boot a guest on KVM, where that was not tried since the host has started');
  return action<[{ prove?: boolean }]>(command, async (context, options) => {
    const { out } = context;
    const checks = await localChecks();
    if (options.prove) out.note('booting a guest to prove the accelerator; this may take a minute ...');
    checks.push(...(await checkDaemon(context, options.prove === true)));
    const failed = checks.filter((check) => check.state === 'fail').length;
    const warned = checks.filter((check) => check.state === 'warn').length;
    out.answer({ ok: failed === 0, checks }, () => `${checks.map((check) => line(check, out)).join('\n')}\n`);
    out.note(`${checks.length - failed - warned} passed, ${warned} to know about, ${failed} failed`);
    return failed === 0 ? 0 : 1;
  });
}

const styles = { pass: 'green', warn: 'yellow', fail: 'red' } as const;

function line({ name, state, found, remedy }: Check, out: Output): string {
  const text = `${out.paint(styles[state], state)}  ${name}: ${found}`;
  return remedy ? `${text}\n      ${out.paint('dim', '->')} ${remedy}` : text;
}
