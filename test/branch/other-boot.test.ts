import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { chmodSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { ownHome } from '../sandbox/home.js';
import { failureOf, fork, sh } from '../sandbox/support.js';
import { forkd } from '../support/cli.js';
import { stopDaemon } from '../support/daemon.js';
import { eventually } from '../support/wait.js';
import { inChild } from './support.js';

const BOOT_ID = '/proc/sys/kernel/random/boot_id';

/** Starts a daemon that sees another boot of the host: in a mount namespace of its own, where another file tells the boot. */
async function startUnderAnotherBoot(home: string): Promise<void> {
  const file = join(home, 'boot-id');
  writeFileSync(file, `${randomUUID()}\n`);
  const wrap = ['unshare', '--mount', 'sh', '-c', `mount --bind ${file} ${BOOT_ID} && exec "$@"`, 'sh'];
  const { code, stderr } = await forkd(['ls'], { env: { FORKD_HOME: home }, wrap });
  if (code !== 0) throw new Error(`the daemon does not start: ${stderr}`);
}

/** As the host's crash leaves a file that was not synced. */
function lose(path: string): void {
  const bytes = readFileSync(path);
  bytes.fill(0, 4096, 8192);
  chmodSync(path, 0o600);
  writeFileSync(path, bytes);
  chmodSync(path, 0o444);
}

it('after the host went down, what had not been synced is read: what is whole goes on, what is not has failed', async () => {
  await using home = await ownHome();
  const { client } = home;
  await using children = await fork(2, {}, client);
  const [one, two] = children.boxes;
  if (!one || !two) throw new Error('two sandboxes are needed');
  for (const box of [one, two])
    await sh(
      box,
      `echo ${box.id} > /root/who; sync; tr '\\0' x < /dev/zero | head -c 100000 > /dev/shm/much`,
    );
  const kept = await one.branch({ tag: 'kept' });
  const below = await two.branch();
  const lost = await two.branch({ tag: 'lost' });
  const safe = await one.branch({ tag: 'safe' });
  const all = [kept, below, lost, safe];
  await eventually(async () => {
    const infos = await Promise.all(all.map(({ id }) => client.snapshots.get(id)));
    return infos.every(({ durable }) => durable) || undefined;
  });
  await children[Symbol.asyncDispose]();
  await stopDaemon(home.path);
  for (const { dir } of [kept, below, lost]) rmSync(join(dir, 'durable'));
  lose(join(below.dir, 'layer'));
  await startUnderAnotherBoot(home.path);

  const after = new Map((await client.snapshots.list()).map((info) => [info.id, info]));
  expect(after.get(kept.id)).toMatchObject({ status: 'ready', durable: true, tags: ['kept'] });
  expect(after.get(safe.id)).toMatchObject({ status: 'ready', durable: true });
  expect(after.get(below.id)).toMatchObject({
    status: 'failed',
    bootable: false,
    warning: expect.stringMatching(/went down before it was synced.*layer: bytes 0 to .* were altered/),
  });
  expect(after.get(lost.id)).toMatchObject({ status: 'failed', tags: ['lost'] });
  expect(await inChild('kept', 'cat /root/who', client)).toBe(one.id);
  expect(await failureOf(client.fork({ snapshot: 'lost', n: 1 }))).toMatchObject({
    code: 'snapshot_corrupt',
  });
  await client.snapshots.remove('lost');
  await client.snapshots.remove(below.id);
  expect(execFileSync('ls', [join(home.path, 'snapshots')], { encoding: 'utf8' })).not.toContain(below.id);
});
