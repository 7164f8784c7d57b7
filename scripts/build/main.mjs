/** `npm run build`: TypeScript, the CLI in one file, C; each only when its sources have changed. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { withLock } from '../lib/lock.mjs';
import { lockFile, root } from '../lib/paths.mjs';
import { Failure, reportFailure, run } from '../lib/run.mjs';
import { digestOf, isCurrent, markCurrent } from './stamp.mjs';

/** One part of the build: what it reads, what shows that it was made, and how it is made. */
const parts = [
  {
    name: 'typescript',
    sources: ['packages', 'tsconfig.json', 'tsconfig.base.json', 'package-lock.json'],
    outputs: ['packages/controller/dist/main.js', 'packages/cli/dist/main.js'],
    command: ['node_modules/typescript/bin/tsc', '-b'],
  },
  {
    name: 'bundle',
    sources: ['packages', 'package-lock.json', 'scripts/build/bundle.mjs'],
    outputs: [
      'packages/cli/dist/bundle.cjs',
      'packages/cli/dist/bundle.code',
      'packages/controller/dist/bundle.js',
    ],
    command: ['scripts/build/bundle.mjs'],
  },
  {
    name: 'native',
    sources: ['native'],
    outputs: ['build/native/forkd-agent', 'build/native/forkd-shim', 'build/native/node-openssl.node'],
    command: ['native/build.mjs'],
  },
];

/**
 * @param {readonly string[]} args
 * @returns {Promise<number>} exit code
 */
export function main(args) {
  return reportFailure(async () => {
    if (args.length > 0) throw new Failure(`unknown argument ${JSON.stringify(args[0])}`, 'usage: build.mjs');
    await build();
    return 0;
  });
}

/** Builds what is out of date. */
export async function build() {
  if (parts.every(isMade)) return;
  await withLock(lockFile, 600, async () => {
    for (const part of parts) {
      if (isMade(part)) continue;
      // Taken first: a source that is edited meanwhile is built again next time.
      const digest = digestOf(part.sources);
      console.log(`> node ${part.command.join(' ')}`);
      const code = await run(process.execPath, part.command, { cwd: root });
      if (code !== 0)
        throw new Failure(`building ${part.name} failed (exit ${code})`, 'the messages above say where');
      markCurrent(part.name, digest);
    }
  });
}

function isMade(part) {
  return (
    part.outputs.every((file) => existsSync(join(root, file))) && isCurrent(part.name, digestOf(part.sources))
  );
}
