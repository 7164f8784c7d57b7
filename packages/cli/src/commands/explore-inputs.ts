/** What the children of an exploration get: one line of JSON each. */
import { readFileSync } from 'node:fs';
import { maxBranchChildren } from '@forkd/api';
import type { ExploreInput } from '@forkd/sdk';
import { CliError } from '../failure.js';

/** One input a child, each with its number in `FORKD_CHILD`. @throws CliError that names the line */
export function inputsOf({ each, children }: { each?: string; children?: number }): ExploreInput[] {
  const given = each === undefined ? undefined : readInputs(each);
  const n = children ?? given?.length;
  if (n === undefined) throw new CliError('invalid', 'how many children?', 'give -n N, or --each FILE');
  if (given !== undefined && given.length !== n)
    throw new CliError(
      'invalid',
      `-n ${n}, but ${named(each)} has ${given.length} lines`,
      'leave out -n: there is a child for each line',
    );
  const inputs = given ?? Array.from({ length: n }, (): ExploreInput => ({}));
  return inputs.map((input, index) => ({ ...input, env: { FORKD_CHILD: String(index), ...input.env } }));
}

const format = 'each line is {"env": {"NAME": "VALUE"}, "stdin": "TEXT"}; both may be left out';

function named(path: string | undefined): string {
  return path === '-' ? 'stdin' : String(path);
}

function readInputs(path: string): ExploreInput[] {
  let text: string;
  try {
    text = readFileSync(path === '-' ? 0 : path, 'utf8');
  } catch (error) {
    throw new CliError(
      'not_found',
      `cannot read ${named(path)}: ${(error as Error).message}`,
      'give --each the path of a file, or - for stdin',
      error,
    );
  }
  const lines = text.split('\n').map((line, index) => ({ line, number: index + 1 }));
  const inputs = lines
    .filter(({ line }) => line.trim() !== '')
    .map(({ line, number }) => parseInput(path, line, number));
  if (inputs.length < 1 || inputs.length > maxBranchChildren)
    throw new CliError(
      'invalid',
      `${named(path)} has ${inputs.length} lines, and 1 to ${maxBranchChildren} children can be`,
      format,
    );
  return inputs;
}

function parseInput(path: string, line: string, number: number): ExploreInput {
  const refuse = (problem: string) =>
    new CliError('invalid', `${named(path)}, line ${number}: ${problem}`, format);
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
