/** What a host has open into a sandbox while that is branched. The daemon has no verb for connections and watches; the library has. */
import { randomBytes } from 'node:crypto';
import { basename } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { type Machine, newId } from '@forkd/engine';
import { expect, it } from 'vitest';
import { ownHome } from '../sandbox/home.js';
import { eventually } from '../support/wait.js';
import { openLibrary } from './library.js';

const PORT = 7000;
const FILES = 40;
const LINES = 3000;

/** Makes files one after the other, so that some are made in every stretch of time between two branches. */
const MAKE_FILES = `i=0; while [ $i -lt ${FILES} ]; do echo $i > /root/watched/file-$i; i=$((i+1)); usleep 40000; done`;

async function start(machine: Machine, shell: string) {
  const session = await machine.session();
  const process = await session.spawn({ command: { shell }, stdin: 'none', label: 'test' });
  const ended = process.wait();
  ended.catch(() => undefined); // A server ends with its machine.
  const output = text(process.stdout);
  output.catch(() => undefined);
  return { output, ended };
}

it('a tcp connection, a watch and a command go on through branches: nothing is lost, repeated, or out of order', async () => {
  await using home = await ownHome();
  await using library = await openLibrary(home);
  const source = await library.fork();
  try {
    const session = await source.session();
    await session.files.mkdir('/root/watched');
    await start(source, `nc -ll -p ${PORT} -e cat`);
    const connection = await eventually(() => session.dial(PORT).catch(() => undefined));
    await using watch = await session.files.watch('/root/watched');
    const created: string[] = [];
    const watching = (async () => {
      for await (const event of watch) {
        if (event.kind === 'overflow') throw new Error('events were lost');
        if (event.kind === 'created') created.push(basename(event.path));
        if (created.length === FILES) return;
      }
    })();
    const counting = await start(source, `i=0; while [ $i -lt ${LINES} ]; do echo $i; i=$((i+1)); done`);
    const files = await start(source, MAKE_FILES);
    const sent = randomBytes(1_000_000);
    const echoed = buffer(connection);
    const pumping = (async () => {
      for (let at = 0; at < sent.length; at += 10_000) {
        if (!connection.write(sent.subarray(at, at + 10_000)))
          await new Promise((drained) => connection.once('drain', drained));
      }
      connection.end();
    })();
    for (let round = 0; round < 3; round++) await (await source.branch({ snapshotId: newId('sn') })).ready;
    await pumping;
    expect((await echoed).equals(sent)).toBe(true);
    expect(await files.ended).toMatchObject({ kind: 'exited', code: 0 });
    await watching;
    expect(created).toEqual(Array.from({ length: FILES }, (_, index) => `file-${index}`));
    expect(await counting.ended).toMatchObject({ kind: 'exited', code: 0 });
    const lines = Array.from({ length: LINES }, (_, index) => `${index}\n`).join('');
    expect((await counting.output) === lines).toBe(true);
  } finally {
    await source.destroy();
  }
});
