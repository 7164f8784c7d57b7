import { maxBranchChildren } from '@forkd/api';
import { type ExploreKeep, type ExploreResult, exploreKeeps } from '@forkd/sdk';
import { Command, Option } from 'commander';
import { seconds, wholeNumber } from '../arguments.js';
import { action, type Context } from '../context.js';
import { reportOf } from '../failure.js';
import { bytes, duration, oneLine } from '../format.js';
import { table } from '../output.js';
import { Prefixer } from '../prefixer.js';
import { inputsOf } from './explore-inputs.js';

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
    .option('-n, --children <n>', 'number of children', wholeNumber('-n', 1, maxBranchChildren))
    .option('--each <file>', 'a line of JSON for each child, {"env": {...}, "stdin": "..."}; - reads stdin')
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
    tell(context, exploration.results, options, kept);
    return exitCodeOf(exploration.results);
  });
}

/** 0 when one has exited 0; else the exit code of the first that has ended otherwise, or of what kept it from running. */
function exitCodeOf(results: readonly ExploreResult[]): number {
  if (results.some(({ state }) => state === 'ok')) return 0;
  const ended = results.find(({ exitCode }) => exitCode !== undefined);
  if (ended !== undefined) return ended.exitCode ?? 1;
  const error = results.find((one) => one.error !== undefined)?.error;
  return error === undefined ? 1 : reportOf(error).exitCode;
}

/** What the table has no room for: why children could not run, each reason once, and why nothing was kept. */
function tell(
  { out }: Context,
  results: readonly ExploreResult[],
  { keep, score }: Options,
  kept: readonly string[],
): void {
  const children = new Map<string, { numbers: number[]; remedy: string }>();
  for (const { index, error } of results) {
    if (error === undefined) continue;
    const known = children.get(error.message) ?? { numbers: [], remedy: error.remedy };
    known.numbers.push(index);
    children.set(error.message, known);
  }
  for (const [message, { numbers, remedy }] of children) {
    out.note(`error: child ${numbers.join(', ')}: ${oneLine(message)}`);
    out.note(`hint: ${oneLine(remedy)}`);
  }
  if (keep === 'none' || kept.length > 0) return;
  const succeeded = results.some(({ state }) => state === 'ok');
  out.note(`note: nothing was kept: no child ${succeeded ? 'has a score' : 'has exited 0'}`);
  if (succeeded && score !== undefined)
    out.note('hint: the score command has to exit 0, and the last line that it prints to be a number');
}

type Shown = ReturnType<typeof shown>;

function shown(result: ExploreResult, kept: readonly string[]) {
  const id = result.sandbox?.id;
  return {
    index: result.index,
    sandbox: id,
    state: result.state,
    exit_code: result.exitCode,
    outcome: result.exit?.outcome.kind,
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

/** How it ended, in a word: a time-out and want of memory are no failures of the command's own. */
function wordOf({ signal, outcome, state }: Shown): string {
  return signal ?? (outcome === 'timeout' || outcome === 'oom' ? outcome : state);
}

function resultTable(results: readonly Shown[]): string {
  const scored = results.some(({ score }) => score !== undefined);
  const head = ['CHILD', 'RESULT', '>EXIT', '>TIME', '>MEMORY', ...(scored ? ['>SCORE'] : []), 'KEPT'];
  const rows = results.map((one) => [
    String(one.index),
    wordOf(one),
    one.exit_code === undefined ? '-' : String(one.exit_code),
    duration(one.duration_ms),
    bytes(one.memory_bytes),
    ...(scored ? [one.score === undefined || one.score === null ? '-' : String(one.score)] : []),
    one.kept ? (one.sandbox ?? '') : '-',
  ]);
  return table(head, rows);
}
