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
import { bootRig, connectRig, lastWords, rigEnvironment } from './machine.mjs';
import { machineParts, projectImage, rigDirectory } from './parts.mjs';

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

async function boot(dir, signal) {
  const parts = await machineParts(say);
  const project = await projectImage(say);
  say(`booting (kernel ${parts.kernelVersion}, emulated)`);
  const machine = await bootRig(dir, { ...parts, project }, signal);
  say(`up after ${(machine.bootMs / 1000).toFixed(1)} s`);
  return machine;
}

async function runOnce(command, options) {
  const dir = join(rigDirectory, `run-${process.pid}`);
  const machine = await boot(dir, new AbortController().signal);
  let code = 1;
  try {
    code = await Promise.race([
      runIn(dir, command, options),
      machine.ended.then((how) => {
        throw new Failure(`the rig's QEMU ended: ${how}\n${lastWords(dir)}`);
      }),
    ]);
  } finally {
    await machine.kill();
    if (code === 0) rmSync(dir, { recursive: true, force: true });
    else {
      for (const name of ['root.disk', 'scratch.disk']) rmSync(join(dir, name), { force: true });
      say(`logs: ${dir}`);
    }
  }
  return code;
}

async function keepUp() {
  const stop = new AbortController();
  const stopped = new Promise((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => resolve(stop.abort()));
  });
  const machine = await boot(kept, stop.signal);
  writeFileSync(join(kept, 'pid'), String(process.pid));
  say('ready: node test/rig/run.mjs --in -- COMMAND; ctrl-C ends it');
  const how = await Promise.race([machine.ended, stopped.then(() => null)]);
  await machine.kill();
  if (how !== null) {
    say(`QEMU ended: ${how}\n${lastWords(kept)}`);
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

/**
 * Runs a command in a rig that is up.
 *
 * @param {string} dir
 * @param {readonly string[]} command
 * @param {{stdin?: boolean, terminal?: boolean, input?: import('node:stream').Readable}} options
 * @returns {Promise<number>} its exit code; 128 + n for death by a signal
 */
async function runIn(dir, command, options) {
  if (!existsSync(join(dir, 'agent.sock'))) throw new Failure('no rig is kept', 'node test/rig/run.mjs --up');
  const session = await connectRig(dir, 30_000);
  try {
    return await runWith(session, command, options);
  } finally {
    await session.close();
  }
}

async function runWith(session, command, options) {
  const input = options.input ?? (options.stdin || options.terminal ? process.stdin : null);
  const { columns = 80, rows = 24 } = process.stdout;
  const child = await session.spawn({
    command: [...command],
    cwd: '/forkd',
    env: { ...rigEnvironment, ...passedOn() },
    stdin: input ? 'pipe' : 'none',
    ...(options.terminal && { pty: { rows, cols: columns } }),
  });
  const pass = (signal) => child.signal(signal, { all: true }).catch(() => {});
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, pass);
  if (options.terminal && process.stdin.isTTY) process.stdin.setRawMode(true);
  if (input) input.pipe(child.stdin);
  child.stdin?.on('error', () => {});
  child.stdout.pipe(process.stdout, { end: false });
  child.stderr?.pipe(process.stderr, { end: false });
  try {
    const outcome = await child.wait();
    await child.release();
    return exitCode(outcome);
  } finally {
    for (const signal of ['SIGINT', 'SIGTERM']) process.off(signal, pass);
    if (options.terminal && process.stdin.isTTY) process.stdin.setRawMode(false);
    if (input === process.stdin) process.stdin.destroy();
  }
}

/** Settings of tests and of forkd that are no paths of this host. */
function passedOn() {
  const names = Object.keys(process.env).filter((name) =>
    /^(FORKD_(TEST_|ENGINE|ACCELERATOR|DEBUG)|CI$)/.test(name),
  );
  return Object.fromEntries(names.map((name) => [name, process.env[name]]));
}

function exitCode(outcome) {
  switch (outcome.kind) {
    case 'exited':
      return outcome.code;
    case 'signaled':
      return 128 + outcome.signal;
    default:
      say(`the command ended by ${outcome.kind}`);
      return 1;
  }
}
