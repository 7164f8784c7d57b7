import { readFileSync } from 'node:fs';
import { type ExploreInput, type ExploreKeep, type ExploreResult, exploreKeeps } from '@forkd/sdk';
import { Command, Option } from 'commander';
import { seconds, wholeNumber } from '../arguments.js';
import { action } from '../context.js';
import { CliError } from '../failure.js';
import { bytes, duration } from '../format.js';
import { table } from '../output.js';
import { Prefixer } from '../prefixer.js';

interface Options {
  children?: number;
  each?: string;
  firstSuccess?: boolean;
  keep: ExploreKeep;
  score?: string;
  timeout?: number;
  cwd?: string;
  user?: string;
}

/** `forkd explore ID|TAG -n N -- COMMAND`: one state, several continuations. */
export function exploreCommand(): Command {
  const command = new Command('explore')
    .description('fork a sandbox or snapshot several times, run a command in each child, compare')
    .argument('<from>', 'id of a sandbox (which is branched), or tag or id of a snapshot')
    .argument('<command...>', 'after --: program and arguments, without a shell in between')
    .option('-n, --children <n>', 'number of children', wholeNumber('-n', 1, 1000))
    .option('--each <file>', 'a line of JSON for each child: {"env": {...}, "stdin": "..."}')
    .option('--first-success', 'cancel the others as soon as one has exited 0')
    .addOption(new Option('--keep <which>', 'children that live on').choices(exploreKeeps).default('none'))
    .option('--score <command>', 'shell command run in children that exited 0; its last line is a number')
    .option('--timeout <time>', 'kill a command after this time', seconds('--timeout'))
    .option('-w, --cwd <dir>', 'working directory in the guest')
    .option('-u, --user <user>', 'user name or uid in the guest')
    .addHelpText(
      'after',
      '\nExample: forkd explore ID -n 4 --first-success -- sh try.sh\nOutput is prefixed by the number of the child. Each command has its number in FORKD_CHILD. Exit code 0 when one exited 0.',
    );
  return action<[string, string[], Options]>(command, async (context, from, args, options) => {
    const each = inputsOf(options);
    const { json } = context.out;
    const lines = new Prefixer(each.length, json ? process.stderr : process.stdout, process.stderr);
    const client = await context.client();
    const exploration = client.explore({
      from,
      each,
      command: args,
      cwd: options.cwd,
      user: options.user,
      timeoutSecs: options.timeout,
      ...(options.score !== undefined && { score: { shell: options.score } }),
      firstSuccess: options.firstSuccess === true,
      keep: options.keep,
      onOutput: (index, stream, chunk) => lines.write(index, stream, chunk),
      signal: context.signal,
    });
    for await (const { index } of exploration) lines.end(index);
    const kept = exploration.kept.map(({ id }) => id);
    const results = exploration.results.map((result) => shown(result, kept));
    context.out.answer({ snapshot: exploration.snapshot, results, kept }, () => resultTable(results));
    return results.some(({ state }) => state === 'ok')
      ? 0
      : (results.find((one) => one.exit_code)?.exit_code ?? 1);
  });
}

type Shown = ReturnType<typeof shown>;

function shown(result: ExploreResult, kept: readonly string[]) {
  const id = result.sandbox?.id;
  return {
    index: result.index,
    sandbox: id,
    state: result.state,
    exit_code: result.exitCode,
    signal: signalOf(result),
    duration_ms: result.durationMs,
    memory_bytes: result.memoryBytes,
    score: result.score,
    error: result.error?.message,
    kept: id !== undefined && kept.includes(id),
  };
}

function signalOf({ exit }: ExploreResult): string | undefined {
  return exit?.outcome.kind === 'signaled' ? exit.outcome.signal : undefined;
}

function resultTable(results: readonly Shown[]): string {
  const scored = results.some(({ score }) => score !== undefined);
  const head = ['CHILD', 'RESULT', '>EXIT', '>TIME', '>MEMORY', ...(scored ? ['>SCORE'] : []), 'KEPT'];
  const rows = results.map((one) => [
    String(one.index),
    one.error ?? one.signal ?? one.state,
    one.exit_code === undefined ? '-' : String(one.exit_code),
    duration(one.duration_ms),
    bytes(one.memory_bytes),
    ...(scored ? [one.score === undefined || one.score === null ? '-' : String(one.score)] : []),
    one.kept ? (one.sandbox ?? '') : '-',
  ]);
  return table(head, rows);
}

/** One input a child. */
function inputsOf({ each, children }: Options): ExploreInput[] {
  const given = each === undefined ? undefined : readInputs(each);
  const n = children ?? given?.length;
  if (n === undefined) throw new CliError('invalid', 'how many children?', 'give -n N, or --each FILE');
  if (given !== undefined && given.length !== n)
    throw new CliError('invalid', `-n ${n}, but ${each} has ${given.length} lines`, 'leave out -n');
  const inputs = given ?? Array.from({ length: n }, (): ExploreInput => ({}));
  return inputs.map((input, index) => ({ ...input, env: { FORKD_CHILD: String(index), ...input.env } }));
}

function readInputs(path: string): ExploreInput[] {
  let text: string;
  try {
    text = readFileSync(path === '-' ? 0 : path, 'utf8');
  } catch (error) {
    throw new CliError('not_found', `cannot read ${path}: ${(error as Error).message}`, undefined, error);
  }
  const lines = text.split('\n').map((line, index) => ({ line, number: index + 1 }));
  const inputs = lines
    .filter(({ line }) => line.trim() !== '')
    .map(({ line, number }) => parseInput(path, line, number));
  if (inputs.length < 1 || inputs.length > 1000)
    throw new CliError('invalid', `${path} has ${inputs.length} lines, 1 to 1000 can be`);
  return inputs;
}

function parseInput(path: string, line: string, number: number): ExploreInput {
  const refuse = (problem: string) =>
    new CliError(
      'invalid',
      `${path}:${number}: ${problem}`,
      'each line is {"env": {"NAME": "VALUE"}, "stdin": "TEXT"}',
    );
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    throw refuse(`not JSON: ${(error as Error).message}`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw refuse('not an object');
  const { env, stdin, ...rest } = value as Record<string, unknown>;
  const [unknown] = Object.keys(rest);
  if (unknown !== undefined) throw refuse(`unknown field ${JSON.stringify(unknown)}`);
  if (stdin !== undefined && typeof stdin !== 'string') throw refuse('stdin is not a string');
  const isEnv =
    typeof env === 'object' && env !== null && Object.values(env).every((one) => typeof one === 'string');
  if (env !== undefined && !isEnv) throw refuse('env is not an object of strings');
  return {
    ...(env !== undefined && { env: env as Record<string, string> }),
    ...(stdin !== undefined && { stdin }),
  };
}
