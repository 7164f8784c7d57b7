/**
 * The parity suite as a program: `node main.js [--json FILE] [--only TEXT]... [--secs N] ENGINE+ACCELERATOR...`, such as
 * `qemu+kvm firecracker+kvm`.
 *
 * `--only` keeps the behaviours whose area and name hold one of the texts, `--secs` bounds the whole run: what has not begun by then fails. Prints what ran and one table of results; exit code 0 only when all behaviours hold on all.
 */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { runScenarios, textOf } from './run.js';
import { scenarios } from './scenarios/index.js';
import { openStage } from './stage.js';
import { type Column, table } from './table.js';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    json: { type: 'string' },
    only: { type: 'string', multiple: true, default: [''] },
    secs: { type: 'string', default: '3600' },
  },
});
const chosen = scenarios.filter(({ area, name }) =>
  values.only.some((text) => `${area}: ${name}`.includes(text)),
);
if (chosen.length === 0 || positionals.length === 0) {
  console.error(
    positionals.length === 0
      ? 'error: nothing to run on is named, such as qemu+tcg'
      : `error: no behaviour holds ${JSON.stringify(values.only)}`,
  );
  process.exit(2);
}
const began = performance.now();
const until = began + seconds(values.secs) * 1000;
const columns: Column[] = [];
for (const title of positionals) columns.push(await column(title));
console.log(`\n${table(columns)}`);
if (values.json) writeFileSync(values.json, JSON.stringify(columns));
const failed = columns.flatMap(({ title, results, trouble }) => [
  ...(trouble === undefined ? [] : [`${title}: ${trouble}`]),
  ...results
    .filter(({ state }) => state === 'fail')
    .map(({ scenario, error }) => `${title}: ${scenario.area}: ${scenario.name}\n${error}`),
]);
for (const text of failed) console.log(`\nFAILED on ${text}`);
for (const { title, engine, version, slowness } of columns)
  console.log(`${title}: ${engine} ${version}, ${slowness.toFixed(1)} x slower than an ordinary host`);
const took = Math.round((performance.now() - began) / 1000);
console.log(`ran on ${positionals.join(', ')} in ${took} s; ${failed.length} failed`);
// Sockets of sandboxes that a failed behaviour has left may still be open.
process.exit(failed.length === 0 ? 0 : 1);

function seconds(text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1) return value;
  console.error(`error: --secs ${JSON.stringify(text)} is not a whole number from 1`);
  process.exit(2);
}

async function column(title: string): Promise<Column> {
  const [engine = '', accelerator = ''] = title.split('+');
  const say = (text: string) => console.log(`${clock()} ${title}: ${text}`);
  const shown: Column = { title, engine, version: 'unknown', slowness: 1, results: [] };
  try {
    await using stage = await openStage({ checkout: process.cwd(), engine, accelerator, say });
    shown.version = stage.version;
    shown.slowness = stage.slowness;
    shown.results = await runScenarios(chosen, stage, { until, say });
  } catch (error) {
    shown.trouble = `${shown.results.length === 0 ? 'no daemon with a template' : 'the end of the daemon'}: ${textOf(error)}`;
    say(`FAIL ${shown.trouble}`);
  }
  return shown;
}

/** Since the run began, in seconds. */
function clock(): string {
  return `[${((performance.now() - began) / 1000).toFixed(0).padStart(4)} s]`;
}
