import { execFileSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import {
  chmodSync,
  chownSync,
  closeSync,
  linkSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  rmSync,
  statSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import type { MachinePin, Manifest } from '@forkd/engine';
import { afterEach, describe, expect, it } from 'vitest';
import { client, failureOf, fork, sh } from '../sandbox/support.js';
import { sharedHome } from '../support/home.js';

const snapshots = () => join(sharedHome(), 'snapshots');
const made: string[] = [];
afterEach(() => {
  for (const id of made.splice(0)) rmSync(join(snapshots(), id), { recursive: true, force: true });
});

/** A copy of the busybox snapshot under a name of its own, to be damaged. Its files are copied when they are to be changed. */
async function copy(options: { files?: 'copied' | 'linked'; edit?: (manifest: Manifest) => unknown } = {}) {
  const source = await client().snapshots.get('busybox');
  const alphabet = '0123456789abcdefghjkmnpqrstvwxyz';
  const id = `sn-${Array.from({ length: 16 }, () => alphabet[randomInt(32)]).join('')}`;
  const dir = join(snapshots(), id);
  made.push(id);
  mkdirSync(dir, { mode: 0o700 });
  for (const name of readdirSync(source.dir).filter((entry) => entry !== 'manifest.json')) {
    if (options.files === 'copied')
      execFileSync('cp', ['--preserve=mode', '--sparse=always', join(source.dir, name), join(dir, name)]);
    else linkSync(join(source.dir, name), join(dir, name));
  }
  const manifest = JSON.parse(readFileSync(join(source.dir, 'manifest.json'), 'utf8')) as Manifest;
  manifest.id = id;
  const edited = options.edit?.(manifest) ?? manifest;
  const text = typeof edited === 'string' ? edited : JSON.stringify(edited);
  writeFileSync(join(dir, 'manifest.json'), text, { mode: 0o444 });
  return { id, dir, path: (name: string) => join(dir, name) };
}

/** What a fork of it says; nothing may be left of the try. The daemon removes what no tag names once nothing needs it: look first. */
async function refusal(id: string) {
  const error = await failureOf(client().fork({ snapshot: id }));
  expect(error.message).toContain(id);
  expect(error.remedy).toMatch(/template build/);
  const sandboxes = await client().sandboxes.list();
  expect(sandboxes.filter(({ snapshot_id }) => snapshot_id === id)).toEqual([]);
  return error;
}

it('a copy of a snapshot that is whole can be forked and verified', async () => {
  const { id } = await copy({ files: 'copied' });
  expect(await client().snapshots.verify(id)).toMatchObject({ ok: true, problems: [] });
  await using children = await fork(1, { snapshot: id });
  expect(await sh(children.box, 'echo fine')).toBe('fine');
});

describe.each(['memory', 'state', 'disk'])('a snapshot whose %s', (name) => {
  it('is too short is refused, by name and sizes', async () => {
    const { id, path } = await copy({ files: 'copied' });
    const { size } = statSync(path(name));
    chmodSync(path(name), 0o644);
    truncateSync(path(name), size - 1);
    chmodSync(path(name), 0o444);
    expect(await client().snapshots.verify(id)).toMatchObject({ ok: false });
    const error = await refusal(id);
    expect(error).toMatchObject({ code: 'snapshot_corrupt', status: 409 });
    expect(error.message).toContain(name);
    expect(error.message).toContain(`${size - 1}`);
    expect(error.message).toContain(`${size}`);
  });

  it('is too long is refused', async () => {
    const { id, path } = await copy({ files: 'copied' });
    chmodSync(path(name), 0o644);
    truncateSync(path(name), statSync(path(name)).size + 4096);
    chmodSync(path(name), 0o444);
    expect(await refusal(id)).toMatchObject({ code: 'snapshot_corrupt' });
  });

  it('is not there is refused', async () => {
    const { id, path } = await copy();
    unlinkSync(path(name));
    const error = await refusal(id);
    expect(error.code).toBe('snapshot_corrupt');
    expect(error.message).toContain(name);
    expect(error.message).toContain('missing');
  });

  it('can be written to is refused', async () => {
    const { id, path } = await copy({ files: 'copied' });
    chmodSync(path(name), 0o644);
    const error = await refusal(id);
    expect(error.code).toBe('snapshot_corrupt');
    expect(error.message).toContain('writable');
  });

  it.runIf(process.getuid?.() === 0)('belongs to somebody else is refused', async () => {
    const { id, path } = await copy({ files: 'copied' });
    chownSync(path(name), 12_345, 12_345);
    const error = await refusal(id);
    expect(error.code).toBe('snapshot_corrupt');
    expect(error.message).toContain('12345');
  });

  it('is a link or a directory is refused', async () => {
    const { id, path } = await copy();
    unlinkSync(path(name));
    mkdirSync(path(name));
    expect(await refusal(id)).toMatchObject({ code: 'snapshot_corrupt' });
  });

  it('has one byte altered is found out by verify, which says where', async () => {
    const { id, path } = await copy({ files: 'copied' });
    const at = Math.floor(statSync(path(name)).size / 2);
    chmodSync(path(name), 0o644);
    const fd = openSync(path(name), 'r+');
    const byte = Buffer.alloc(1);
    readSync(fd, byte, 0, 1, at);
    writeSync(fd, Buffer.from([(byte[0] ?? 0) ^ 1]), 0, 1, at);
    closeSync(fd);
    chmodSync(path(name), 0o444);
    const report = await client().snapshots.verify(id);
    expect(report.ok).toBe(false);
    expect(report.problems).toHaveLength(1);
    expect(report.problems[0]).toMatch(new RegExp(`^${name}: .*altered`));
  });
});

describe('a manifest', () => {
  const texts: [string, (manifest: Manifest) => unknown, RegExp][] = [
    ['that is no JSON', () => '{"format":1,', /JSON/],
    ['that is empty', () => '', /JSON/],
    ['of another format', (manifest) => ({ ...manifest, format: 2 }), /format/],
    ['with fields that are not known', (manifest) => ({ ...manifest, extra: 1 }), /manifest\.json/],
    ['without a field', ({ machine: _, ...manifest }) => manifest, /manifest\.json/],
    [
      'of another snapshot',
      (manifest) => ({ ...manifest, id: 'sn-0000000000000000' }),
      /sn-0000000000000000/,
    ],
  ];
  it.each(texts)('%s is refused', async (_, edit, message) => {
    const { id } = await copy({ edit });
    // It is shown, with what is wrong; it does not hide the others.
    const list = await client().snapshots.list();
    expect(list.find((snapshot) => snapshot.id === id)).toMatchObject({ bootable: false, status: 'failed' });
    expect(list.find(({ tag }) => tag === 'busybox')).toMatchObject({ bootable: true });
    const error = await refusal(id);
    expect(error).toMatchObject({ code: 'snapshot_corrupt' });
    expect(error.message).toMatch(message);
  });

  it('that is not there is said to be missing', async () => {
    const { id, path } = await copy();
    unlinkSync(path('manifest.json'));
    const error = await refusal(id);
    expect(error.code).toBe('snapshot_corrupt');
    expect(error.message).toContain('manifest.json');
  });

  const pins: [keyof MachinePin, (pin: MachinePin) => MachinePin, string[]][] = [
    ['engineVersion', (pin) => ({ ...pin, engineVersion: '1.2.3-other' }), ['1.2.3-other']],
    ['engineSha256', (pin) => ({ ...pin, engineSha256: 'a'.repeat(64) }), ['a'.repeat(12)]],
    ['tscKhz', (pin) => ({ ...pin, tscKhz: pin.tscKhz * 1.01 }), ['TSC']],
    ['cpuModel', (pin) => ({ ...pin, cpuModel: 'Other-v1' }), ['Other-v1']],
    ['machineType', (pin) => ({ ...pin, machineType: 'q35' }), ['q35']],
    ['agentProtocol', (pin) => ({ ...pin, agentProtocol: 99 }), ['99']],
    ['accelerator', (pin) => ({ ...pin, accelerator: pin.accelerator === 'tcg' ? 'kvm' : 'tcg' }), ['kvm']],
    ['engine', (pin) => ({ ...pin, engine: 'firecracker' }), ['firecracker']],
    [
      'firmware',
      (pin) => ({ ...pin, firmware: { ...pin.firmware, 'other.bin': 'b'.repeat(64) } }),
      ['other.bin'],
    ],
    ['cpuFlags', (pin) => ({ ...pin, cpuFlags: ['no-such-flag'] }), ['no-such-flag']],
  ];
  it.each(pins)('that pins another %s is refused, naming both sides', async (field, edit, named) => {
    const { machine: host } = (await client().snapshots.get('busybox')).manifest as Manifest;
    const { id } = await copy({ edit: (manifest) => ({ ...manifest, machine: edit(manifest.machine) }) });
    const info = (await client().snapshots.list()).find((snapshot) => snapshot.id === id);
    expect(info).toMatchObject({ bootable: false, warning: expect.stringContaining(String(named[0])) });
    const error = await refusal(id);
    expect(error).toMatchObject({ code: 'snapshot_incompatible', status: 409 });
    for (const text of named) expect(error.message).toContain(text);
    const here = host[field];
    // Of an accelerator it says why this host cannot use it.
    if (typeof here === 'string' && field !== 'accelerator')
      expect(error.message).toContain(here.slice(0, 12));
  });

  it('that pins a TSC rate a little different is none the worse', async () => {
    const { id } = await copy({
      edit: (manifest) => ({
        ...manifest,
        machine: { ...manifest.machine, tscKhz: manifest.machine.tscKhz * 1.0003 },
      }),
    });
    await using children = await fork(1, { snapshot: id });
    expect(await sh(children.box, 'echo fine')).toBe('fine');
  });
});
