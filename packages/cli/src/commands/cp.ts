import { pipeline } from 'node:stream/promises';
import { Command } from 'commander';
import { action, type Context } from '../context.js';
import { download } from '../copy/download.js';
import { type Place, parsePlace } from '../copy/place.js';
import { Tally } from '../copy/tally.js';
import { upload } from '../copy/upload.js';
import { CliError, exitCodes } from '../failure.js';
import { oneLine } from '../format.js';

/** `forkd cp SRC DST`: files and directories, into a sandbox or out of it. */
export function cpCommand(): Command {
  const command = new Command('cp')
    .description('copy files and directories into a sandbox or out of it')
    .argument('<src>', 'PATH, ID:PATH, or - for stdin')
    .argument('<dst>', 'PATH, ID:PATH, or - for stdout');
  return action<[string, string]>(command, async (context, source, destination) => {
    const tally = new Tally();
    await copy(context, parsePlace(source), parsePlace(destination), tally);
    for (const { path, reason } of tally.skipped)
      context.out.note(`skipped: ${oneLine(path)} ${oneLine(reason)}`);
    if (destination !== '-') context.out.answer(tally, () => '');
    context.out.note(`copied ${tally}`);
    return tally.skipped.length === 0 ? 0 : exitCodes.failed;
  });
}

async function copy(context: Context, from: Place, to: Place, tally: Tally): Promise<void> {
  const { signal } = context;
  if (from.kind === 'guest' && to.kind !== 'guest') {
    const sandbox = (await context.client()).sandbox(from.sandbox);
    if (to.kind === 'local') return download(sandbox, from.path, to.path, tally, signal);
    const { info, stream } = await sandbox.files.readStream(from.path, { signal });
    await pipeline(stream, process.stdout, { end: false, signal });
    tally.add(info.size);
  } else if (to.kind === 'guest' && from.kind !== 'guest') {
    const sandbox = (await context.client()).sandbox(to.sandbox);
    if (from.kind === 'local') return upload(sandbox, from.path, to.path, tally, signal);
    const { size } = await sandbox.files.write(to.path, process.stdin, { signal });
    tally.add(size);
  } else {
    throw new CliError(
      'invalid',
      'exactly one of SRC and DST must be in a sandbox',
      'write it as ID:PATH; between two sandboxes: forkd cp A:PATH - | forkd cp - B:PATH',
    );
  }
}
