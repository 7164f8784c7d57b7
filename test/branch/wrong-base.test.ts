/** A layer over a base that is not the one it was compared with. What is looked at are copies of snapshots, since the daemon keeps what it has read. */
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { type Manifest, newId } from '@forkd/engine';
import { afterEach, expect, it } from 'vitest';
import { client, failureOf, fork, sh } from '../sandbox/support.js';
import { sharedHome } from '../support/home.js';
import { branch } from './support.js';

const made: string[] = [];
afterEach(() => {
  for (const id of made.splice(0)) rmSync(directory(id), { recursive: true, force: true });
});

function directory(id: string): string {
  return join(sharedHome(), 'snapshots', id);
}

/** A copy of a snapshot under an id of its own. @param edit what its manifest says instead */
async function copy(
  ref: string,
  edit: (manifest: Manifest) => void = () => {},
  id = newId('sn'),
): Promise<string> {
  const source = await client().snapshots.get(ref);
  made.push(id);
  mkdirSync(directory(id), { mode: 0o700 });
  for (const name of readdirSync(source.dir).filter((entry) => entry !== 'manifest.json'))
    linkSync(join(source.dir, name), join(directory(id), name));
  const manifest = JSON.parse(readFileSync(join(source.dir, 'manifest.json'), 'utf8')) as Manifest;
  manifest.id = id;
  edit(manifest);
  writeFileSync(join(directory(id), 'manifest.json'), JSON.stringify(manifest), { mode: 0o444 });
  return id;
}

/** A copy of a branch that stands on this base. */
async function over(base: string, ref: string): Promise<string> {
  return await copy(ref, ({ branch: origin }) => Object.assign(origin!, { parent: base, chain: [base] }));
}

it('a layer over the wrong base is refused, whether that is another one, of another size, or not a base at all', async () => {
  await using children = await fork();
  await sh(children.box, 'echo layer > /dev/shm/x');
  await using half = await branch(children.box);
  await using whole = await branch(children.box);
  const refusal = async (id: string) => await failureOf(client().fork({ snapshot: id }));

  // The control: a copy over a copy of its own base.
  {
    await using fine = await fork(1, { snapshot: await over(await copy('busybox'), half.id) });
    expect(await sh(fine.box, 'cat /dev/shm/x')).toBe('layer');
  }

  // A directory of another snapshot under the base's name.
  const renamed = newId('sn');
  await copy('busybox', (manifest) => Object.assign(manifest, { id: newId('sn') }), renamed);
  expect(await refusal(await over(renamed, half.id))).toMatchObject({
    code: 'snapshot_corrupt',
    status: 409,
  });

  // A base with less memory than the layer was made over.
  const small = await copy('busybox', (manifest) => {
    manifest.memoryBytes /= 2;
    manifest.files.memory.bytes /= 2;
  });
  const memory = join(directory(small), 'memory');
  const source = await client().snapshots.get('busybox');
  rmSync(memory);
  execFileSync('cp', ['--sparse=always', join(source.dir, 'memory'), memory]);
  chmodSync(memory, 0o644);
  truncateSync(memory, source.memory_mib * 2 ** 19);
  chmodSync(memory, 0o444);
  const error = await refusal(await over(small, half.id));
  expect(error.code).toBe('snapshot_corrupt');
  expect(error.message).toMatch(new RegExp(`${small} has \\d+ bytes of memory, not \\d+`));

  // A layer in the place of a base: the branch below it was left out.
  const skipped = await copy(whole.id, ({ branch: origin }) => origin!.chain.splice(0, 1));
  expect(await refusal(skipped)).toMatchObject({ code: 'snapshot_corrupt' });
  expect((await client().sandboxes.list()).filter(({ snapshot_id }) => made.includes(snapshot_id))).toEqual(
    [],
  );
});
