/** What a host has open into a sandbox while that is branched. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { basename } from 'node:path';
import type { Duplex } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { type Machine, newId } from '@forkd/engine';
import { eventually } from './wait.js';

const PORT = 7000;
const FILES = 40;
const LINES = 3000;
const BYTES = 1_000_000;
const ROUNDS = 3;

/** Makes files one after the other, so that some are made in every stretch of time between two branches. */
const MAKE_FILES = `i=0; while [ $i -lt ${FILES} ]; do echo $i > /root/watched/file-$i; i=$((i+1)); usleep 40000; done`;
const COUNT = `i=0; while [ $i -lt ${LINES} ]; do echo $i; i=$((i+1)); done`;

/**
 * A tcp connection, a watch and two commands go on through branches: nothing is lost, repeated, or out of order.
 *
 * @param source a child of the busybox template
 * @param slowness how much slower than an ordinary host this one is
 */
export async function sessionsGoOnThroughBranches(source: Machine, slowness = 1): Promise<void> {
  const session = await source.session();
  await session.files.mkdir('/root/watched');
  await start(source, `nc -ll -p ${PORT} -e cat`);
  const connection = await eventually(() => session.dial(PORT).catch(() => undefined), 10_000 * slowness);
  await using watch = await session.files.watch('/root/watched');
  const watching = firstCreated(watch, FILES);
  const counting = await start(source, COUNT);
  const files = await start(source, MAKE_FILES);
  const sent = randomBytes(BYTES);
  const echoed = buffer(connection);
  const pumping = pump(connection, sent);
  for (let round = 0; round < ROUNDS; round++) {
    const { mode, reason, ready } = await source.branch({ snapshotId: newId('sn') });
    assert.equal(mode, 'live', reason);
    await ready;
  }
  await pumping;
  assert.ok((await echoed).equals(sent), 'the connection has not given back what was sent');
  const names = Array.from({ length: FILES }, (_, index) => `file-${index}`);
  assert.deepEqual(await watching, names);
  const lines = Array.from({ length: LINES }, (_, index) => `${index}\n`).join('');
  assert.ok((await counting.output) === lines, 'the output of a command is not what it has printed');
  for (const { ended } of [files, counting]) {
    const { kind, code } = { code: undefined, ...(await ended) };
    assert.deepEqual({ kind, code }, { kind: 'exited', code: 0 });
  }
}

async function start(machine: Machine, shell: string) {
  const session = await machine.session();
  const process = await session.spawn({ command: { shell }, stdin: 'none', label: 'test' });
  const ended = process.wait();
  ended.catch(() => undefined); // A server ends with its machine.
  const output = text(process.stdout);
  output.catch(() => undefined);
  return { output, ended };
}

type Events = AsyncIterable<{ kind: string; path?: string }>;

/** Names of the first so many files that a watch tells of. */
async function firstCreated(watch: Events, most: number): Promise<string[]> {
  const names: string[] = [];
  for await (const { kind, path } of watch) {
    if (kind === 'overflow') throw new Error('events were lost');
    if (kind === 'created' && path !== undefined) names.push(basename(path));
    if (names.length === most) break;
  }
  return names;
}

async function pump(connection: Duplex, sent: Buffer): Promise<void> {
  for (let at = 0; at < sent.length; at += 10_000) {
    if (!connection.write(sent.subarray(at, at + 10_000)))
      await new Promise((drained) => connection.once('drain', drained));
  }
  connection.end();
}
