/**
 * The parity suite as a program: `node main.js [--json FILE] [--only TEXT] ENGINE+ACCELERATOR...`, such as `qemu+kvm firecracker+kvm`.
 * Prints what ran and one table of results; exit code 0 only when all behaviours hold on all.
 */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { scenarios } from './scenarios/index.js';
import { openStage } from './stage.js';
import { type Column, type Result, table } from './table.js';
import type { Scenario, Stage } from './types.js';

/** One behaviour may take this long on an ordinary host, ms. */
const SCENARIO_MS = 60_000;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'string' }, only: { type: 'string' } },
});
const chosen = scenarios.filter(({ area, name }) => `${area}: ${name}`.includes(values.only ?? ''));
const columns: Column[] = [];
for (const title of positionals) columns.push(await column(title));
console.log(`\n${table(columns)}`);
if (values.json) writeFileSync(values.json, JSON.stringify(columns));
const failed = columns.flatMap(({ title, results }) =>
  results.filter(({ state }) => state === 'fail').map((result) => ({ title, ...result })),
);
for (const { title, scenario, error } of failed)
  console.log(`\nFAILED on ${title}: ${scenario.area}: ${scenario.name}\n${error}`);
console.log(`\nran: ${positionals.join(', ')}; ${failed.length} failed`);
// Sockets of sandboxes that a failed behaviour has left may still be open.
process.exit(failed.length === 0 && columns.length > 0 ? 0 : 1);

async function column(title: string): Promise<Column> {
  const [engine = '', accelerator = ''] = title.split('+');
  const say = (text: string) => console.log(`${title}: ${text}`);
  const results: Result[] = [];
  try {
    await using stage = await openStage({ checkout: process.cwd(), engine, accelerator, say });
    for (const scenario of chosen) results.push(await show(scenario, stage, say));
  } catch (error) {
    const scenario: Result['scenario'] = { area: 'fork', name: 'the daemon starts and builds a template' };
    results.push({ scenario, state: 'fail', ms: 0, error: textOf(error) });
    say(`failed: ${textOf(error)}`);
  }
  return { title, results };
}

async function show(scenario: Scenario, stage: Stage, say: (text: string) => void): Promise<Result> {
  const began = performance.now();
  const limit = SCENARIO_MS * stage.slowness;
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`took longer than ${Math.round(limit)} ms`)), limit);
  });
  const { area, name } = scenario;
  try {
    await Promise.race([scenario.run(stage), late]);
    const ms = performance.now() - began;
    say(`pass ${(ms / 1000).toFixed(1)} s  ${area}: ${name}`);
    return { scenario: { area, name }, state: 'pass', ms };
  } catch (error) {
    say(`FAIL ${area}: ${name}: ${textOf(error)}`);
    return { scenario: { area, name }, state: 'fail', ms: performance.now() - began, error: textOf(error) };
  } finally {
    clearTimeout(timer);
  }
}

function textOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
