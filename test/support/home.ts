/** The state directory that tests over microVMs share. */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Variable that carries the shared home from the runner's main process into its workers. */
export const homeVariable = 'FORKD_TEST_HOME';

/** Makes a state directory. Its path is short: unix sockets below it may have 107 bytes. */
export function makeHome(): string {
  return mkdtempSync(join(tmpdir(), 'fk-'));
}

/** The home that the global set-up has made. */
export function sharedHome(): string {
  const home = process.env[homeVariable];
  if (!home)
    throw new Error(
      `${homeVariable} is not set: this test belongs into a project with test/support/global-setup.ts`,
    );
  return home;
}
