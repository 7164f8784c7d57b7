import { readFileSync } from 'node:fs';
import type { EvalResponse } from '@forkd/api';
import { Command } from 'commander';
import { seconds } from '../arguments.js';
import { action } from '../context.js';
import { CliError } from '../failure.js';
import { readInput } from '../remote.js';

interface Options {
  file?: string;
  timeout?: number;
  interpreter?: string;
}

/** `forkd eval ID CODE`: evaluates code in the warm interpreter. */
export function evalCommand(): Command {
  const command = new Command('eval')
    .description('evaluate code in the warm interpreter of a sandbox')
    .argument('<sandbox>', 'id, sb-...')
    .argument('[code]', '"-" reads it from stdin')
    .option('-f, --file <file>', 'read the code from a file here')
    .option(
      '--timeout <time>',
      'interrupt the code after this time; the interpreter lives on (default 30)',
      seconds('--timeout'),
    )
    .option('--interpreter <name>', 'default: the first of the template');
  return action<[string, string | undefined, Options]>(command, async (context, id, given, options) => {
    const code = await codeOf(given, options.file);
    const client = await context.client();
    const { json } = context.out;
    const result: EvalResponse = await client.sandbox(id).eval(code, {
      timeoutSecs: options.timeout,
      interpreter: options.interpreter,
      signal: context.signal,
      ...(!json && { onOutput: (stream, text) => process[stream].write(text) }),
    });
    context.out.answer(result, () => result.result ?? '');
    if (!json && result.error !== null) {
      process.stderr.write(`${result.exception?.traceback.trimEnd() || result.error}\n`);
    }
    return result.exit_code;
  });
}

async function codeOf(given: string | undefined, file: string | undefined): Promise<string> {
  if ((given === undefined) === (file === undefined)) {
    throw new CliError('invalid', 'give the code as an argument, or by --file, and not both');
  }
  if (file === undefined) return given === '-' ? (await readInput()).toString('utf8') : (given ?? '');
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new CliError('not_found', `cannot read ${file}: ${(error as Error).message}`, undefined, error);
  }
}
