#!/usr/bin/env node
/**
 * Runs a command in the rig: a Debian with a working /dev/kvm, on a host that has none.
 *
 *   node test/rig/run.mjs -- COMMAND...        boots the rig, runs it in /forkd (a copy of this checkout), ends the rig
 *   node test/rig/run.mjs --up                 boots the rig and keeps it until ctrl-C (or --down)
 *   node test/rig/run.mjs --in -- COMMAND...   runs it in the rig that --up keeps; one at a time
 *   node test/rig/run.mjs --sync               brings packages, test, guest and templates of this checkout into it anew
 *   node test/rig/run.mjs --down               ends it
 *
 * The exit code is the command's. -i passes stdin on; -t gives the command a terminal.
 */
import { spawn } from 'node:child_process';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { root } from '../../scripts/lib/paths.mjs';
import { Failure, reportFailure } from '../../scripts/lib/run.mjs';
import { start } from '../../scripts/lib/start.mjs';
import { boot, rigParts } from './boot.mjs';
import { keepLogs, lastWords } from './machine.mjs';
import { rigDirectory } from './parts.mjs';
import { runIn } from './session.mjs';

const kept = join(rigDirectory, 'kept');
const say = (text) => console.error(`rig: ${text}`);

start(() => reportFailure(main));

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      up: { type: 'boolean' },
      down: { type: 'boolean' },
      in: { type: 'boolean' },
      sync: { type: 'boolean' },
      stdin: { type: 'boolean', short: 'i' },
      terminal: { type: 'boolean', short: 't' },
    },
  });
  if (values.up) return await keepUp();
  if (values.down) return takeDown();
  if (values.sync) return await sync();
  if (positionals.length === 0) throw new Failure('no command', 'node test/rig/run.mjs -- COMMAND...');
  if (values.in) return await runIn(kept, positionals, values);
  return await runOnce(positionals, values);
}

async function runOnce(command, options) {
  const dir = join(rigDirectory, `run-${process.pid}`);
  const machine = await boot(dir, await rigParts(say), say);
  const over = new AbortController();
  let code = 1;
  try {
    code = await Promise.race([
      runIn(dir, command, { ...options, signal: over.signal }),
      machine.ended.then((how) => {
        throw new Failure(`the rig is gone: ${how}\n${lastWords(dir)}`);
      }),
    ]);
  } finally {
    over.abort();
    await machine.kill();
    if (code === 0) rmSync(dir, { recursive: true, force: true });
    else say(`logs: ${keepLogs(dir)}`);
  }
  return code;
}

async function keepUp() {
  const stop = new AbortController();
  const stopped = new Promise((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => resolve(stop.abort()));
  });
  const machine = await boot(kept, await rigParts(say), say, stop.signal);
  writeFileSync(join(kept, 'pid'), String(process.pid));
  say('ready: node test/rig/run.mjs --in -- COMMAND; ctrl-C ends it');
  const how = await Promise.race([machine.ended, stopped.then(() => null)]);
  await machine.kill();
  if (how !== null) {
    say(`${how}\n${lastWords(kept)}`);
    return 1;
  }
  rmSync(kept, { recursive: true, force: true });
  return 0;
}

function takeDown() {
  const file = join(kept, 'pid');
  if (!existsSync(file)) throw new Failure('no rig is kept', 'node test/rig/run.mjs --up');
  process.kill(Number(readFileSync(file, 'utf8')), 'SIGTERM');
  return 0;
}

/** What changes while one works; node_modules and the rig's own programs stay as they were at the boot. */
async function sync() {
  const names = ['packages', 'guest', 'templates', 'test', 'scripts', 'build/native', 'vitest.config.ts'];
  const tar = spawn('tar', ['-c', '--exclude=obj', '-C', root, ...names], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  return await runIn(kept, ['tar', '-x', '-C', '/forkd'], { input: tar.stdout });
}
