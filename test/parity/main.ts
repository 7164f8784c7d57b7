/**
 * The parity suite as a program: `node main.js [--json FILE] [--only TEXT]... [--secs N] ENGINE+ACCELERATOR...`, such as
 * `qemu+kvm firecracker+kvm`.
 *
 * `--only` keeps the behaviours whose area and name hold one of the texts, `--secs` bounds the whole run: what has not come to its end by then is
 * late, which is as red as a failure; with `--late-is-not-red` it is told only, as long as most were judged. Prints what ran and one table of
 * results; exit code 0 only when all behaviours hold on all.
 *
 * `--emulated` says that the hardware that guests run on is emulated: what loses guests there without a word is tried up to four times, and the
 * report says so.
 *
 * For a program that runs it in a machine that may crash: `--events` tells of each step in a line of its own (events.ts) and leaves the table to
 * that program, `--except KEY` leaves out one behaviour on one column.
 */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { eventLine, keyOf, type SuiteEvent } from './events.js';
import { report } from './report.js';
import { runScenarios, textOf } from './run.js';
import { scenarios } from './scenarios/index.js';
import { openStage } from './stage.js';
import type { Column } from './table.js';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    json: { type: 'string' },
    only: { type: 'string', multiple: true, default: [''] },
    secs: { type: 'string', default: '3600' },
    'late-is-not-red': { type: 'boolean', default: false },
    emulated: { type: 'boolean', default: false },
    events: { type: 'boolean', default: false },
    except: { type: 'string', multiple: true, default: [] },
  },
});
const chosen = scenarios.filter((scenario) =>
  values.only.some((text) => `${scenario.area}: ${scenario.name}`.includes(text)),
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
const behaviours = chosen.map(({ area, name }) => ({ area, name }));
tell({ type: 'chosen', behaviours });
const columns: Column[] = [];
for (const title of positionals) columns.push(await column(title));
if (values.json) writeFileSync(values.json, JSON.stringify(columns));
const good = values.events
  ? columns.every(
      ({ trouble, results }) => trouble === undefined && results.every(({ state }) => state !== 'fail'),
    )
  : report(columns, behaviours, (performance.now() - began) / 1000, !values['late-is-not-red']);
// Sockets of sandboxes that a failed behaviour has left may still be open.
process.exit(good ? 0 : 1);

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
    tell({ type: 'column', title, engine, version: stage.version, slowness: stage.slowness });
    await runScenarios(
      chosen.filter((scenario) => !values.except.includes(keyOf(title, scenario))),
      stage,
      {
        until,
        say,
        emulated: values.emulated,
        begins: (behaviour) => tell({ type: 'begin', title, behaviour }),
        ends: (result) => {
          shown.results.push(result);
          tell({ type: 'end', title, result });
        },
      },
    );
  } catch (error) {
    shown.trouble = `${shown.results.length === 0 ? 'no daemon with a template' : 'the end of the daemon'}: ${textOf(error)}`;
    say(`FAIL ${shown.trouble}`);
    tell({ type: 'trouble', title, text: shown.trouble });
  }
  return shown;
}

/** Since the run began, in seconds. */
function clock(): string {
  return `[${((performance.now() - began) / 1000).toFixed(0).padStart(4)} s]`;
}

function tell(event: SuiteEvent): void {
  if (values.events) console.log(eventLine(event));
}
