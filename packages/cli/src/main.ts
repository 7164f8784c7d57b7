/** Entry of the CLI. */
import { CommanderError } from 'commander';
import { exitCodes, printReport, reportOf } from './failure.js';
import { makeProgram } from './program.js';

/**
 * Runs the command line and sets the exit code of this process.
 *
 * @param argv as of process.argv
 */
export async function run(argv: readonly string[]): Promise<void> {
  // A reader that has seen enough (`forkd ls | head`) is no error.
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', (error: NodeJS.ErrnoException) =>
      process.exit(error.code === 'EPIPE' ? 0 : exitCodes.failed),
    );
  }
  try {
    await makeProgram().parseAsync([...argv]);
  } catch (error) {
    // Commander has printed its own.
    if (error instanceof CommanderError) {
      process.exitCode = error.exitCode === 0 ? 0 : exitCodes.invalid;
      return;
    }
    const report = reportOf(error);
    printReport(report, argv.includes('--json'));
    process.exitCode = report.exitCode;
  }
}
