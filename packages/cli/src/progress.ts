/** How long work shows itself: a live list on a terminal, plain lines elsewhere, nothing with --json. Always on stderr. */
import { Listr, ListrLogger, ProcessOutput } from 'listr2';
import { duration } from './format.js';
import { hasColour } from './output.js';

/** How a stage tells of itself. */
export interface Stage {
  /** Something that was done; stays visible. */
  line(text: string): void;
  /** What happens now; replaces what was said before. Without a terminal it is said when it takes long. */
  now(text: string): void;
}

/** One stage of long work. `run` answers what came of it, in a few words. */
export interface StageTask {
  title: string;
  run(stage: Stage): Promise<string | undefined>;
}

/** Lines of a stage that a terminal keeps in sight. */
const visibleLines = 12;
/** Without a terminal: how often a stage that says nothing says that it is alive. */
const aliveMs = 10_000;

/** Runs stages one after the other. The first that throws ends it. */
export async function runStages(stages: readonly StageTask[], quiet: boolean): Promise<void> {
  if (quiet) return runQuietly(stages);
  return process.stderr.isTTY && process.env.TERM !== 'dumb' ? runLive(stages) : runPlainly(stages);
}

async function runQuietly(stages: readonly StageTask[]): Promise<void> {
  const silent: Stage = { line: () => undefined, now: () => undefined };
  for (const stage of stages) await stage.run(silent);
}

async function runPlainly(stages: readonly StageTask[]): Promise<void> {
  const say = (text: string) => process.stderr.write(`${text}\n`);
  for (const { title, run } of stages) {
    const started = performance.now();
    const took = () => duration(performance.now() - started);
    say(`${title} ...`);
    let now = '';
    let alive = setInterval(onSilence, aliveMs);
    function onSilence(): void {
      say(`  (${took()}) ${now}`.trimEnd());
    }
    try {
      const result = await run({
        line: (text) => {
          clearInterval(alive);
          alive = setInterval(onSilence, aliveMs);
          say(`  ${text}`);
        },
        now: (text) => {
          now = text;
        },
      });
      say(`${title}: ${result ?? 'done'} (${took()})`);
    } finally {
      clearInterval(alive);
    }
  }
}

async function runLive(stages: readonly StageTask[]): Promise<void> {
  const output = new ProcessOutput(process.stderr, process.stderr);
  const list = new Listr(
    stages.map(({ title, run }) => ({
      title,
      rendererOptions: { outputBar: visibleLines, persistentOutput: true },
      task: async (_: unknown, task: { title: string; output: string }) => {
        const started = performance.now();
        let now = '';
        const show = () => {
          task.title = `${title}${now && `: ${now}`} (${duration(performance.now() - started)})`;
        };
        const clock = setInterval(show, 1000);
        try {
          const result = await run({
            line: (text) => {
              task.output = text;
            },
            now: (text) => {
              now = text;
              show();
            },
          });
          task.title = `${title}: ${result ?? 'done'} (${duration(performance.now() - started)})`;
        } finally {
          clearInterval(clock);
        }
      },
    })),
    {
      // Ours; the list's own would end the process without cleaning up.
      registerSignalListeners: false,
      fallbackRendererCondition: false,
      rendererOptions: {
        logger: new ListrLogger({ processOutput: output }),
        ...(!hasColour(process.stderr) && { color: {} }),
        showErrorMessage: false,
      },
    },
  );
  await list.run();
}
