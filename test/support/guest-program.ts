/** Programs in C for guests of tests: linked statically, they run in each of them. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const FLAGS = ['-std=c11', '-Os', '-Wall', '-Wextra', '-Werror', '-static', '-s'];

/** Compiles a source. The program, a file of the host, goes with the scope. */
export function guestProgram(source: URL): Disposable & { path: string } {
  const dir = mkdtempSync(join(tmpdir(), 'fk-program-'));
  const path = join(dir, basename(source.pathname, '.c'));
  try {
    execFileSync('musl-gcc', [...FLAGS, '-o', path, fileURLToPath(source)]);
  } catch (error) {
    rmSync(dir, { recursive: true, force: true });
    throw error;
  }
  return { path, [Symbol.dispose]: () => rmSync(dir, { recursive: true, force: true }) };
}
