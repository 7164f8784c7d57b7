import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { Readable } from 'node:stream';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../support/wait.js';
import { type Children, fork, sh } from './support.js';

let children: Children;
beforeAll(async () => {
  children = await fork();
});
afterAll(async () => {
  await children?.[Symbol.asyncDispose]();
});
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

/** Hash and length of all that a stream brings. */
async function digest(stream: Readable): Promise<{ bytes: number; hash: string }> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of stream) {
    hash.update(chunk as Buffer);
    bytes += (chunk as Buffer).length;
  }
  return { bytes, hash: hash.digest('hex') };
}

describe('output', () => {
  it('of 20 MB of any bytes arrives exactly', async () => {
    const make = 'head -c 5000000 /dev/urandom > /tmp/r; for i in 1 2 3 4; do cat /tmp/r; done';
    const expected = await sh(children.box, `(${make}) | sha256sum`);
    const process = await children.box.run({ shell: 'for i in 1 2 3 4; do cat /tmp/r; done' });
    process.stderr?.resume();
    const got = await digest(process.stdout);
    expect(got).toEqual({ bytes: 20_000_000, hash: expected.split(' ')[0] });
    expect(await process.wait()).toMatchObject({ exitCode: 0 });
  });

  it('is collected exactly in base64, up to its limit, and the rest is counted', async () => {
    const exact = await children.box.exec({ shell: 'head -c 5000000 /tmp/r' }, { encoding: 'base64' });
    expect(sha256(Buffer.from(exact.stdout, 'base64'))).toBe(
      (await sh(children.box, 'sha256sum /tmp/r')).split(' ')[0],
    );
    const cut = await children.box.exec({ shell: 'yes | head -c 1000000' }, { maxOutputBytes: 1000 });
    expect(cut).toMatchObject({ stdout_truncated_bytes: 999_000, exit_code: 0 });
    expect(cut.stdout).toHaveLength(1000);
  });

  it('of many bytes to each side is not mixed', async () => {
    const result = await children.box.exec({
      shell: 'i=0; while [ $i -lt 2000 ]; do echo out-$i; echo err-$i >&2; i=$((i+1)); done',
    });
    const lines = (kind: string) => Array.from({ length: 2000 }, (_, i) => `${kind}-${i}\n`).join('');
    expect(result.stdout).toBe(lines('out'));
    expect(result.stderr).toBe(lines('err'));
  });

  it('may be cut amid a character, and is whole in text', async () => {
    const text = '€ü𝄞'.repeat(3);
    const octets = [...Buffer.from(text)].map((byte) => `\\\\${byte.toString(8).padStart(3, '0')}`);
    const result = await children.box.exec({
      shell: `for o in ${octets.join(' ')}; do printf "$o"; usleep 3000; done`,
    });
    expect(result.stdout).toBe(text);
  });

  it('stops its writer alone when nobody reads it', async () => {
    const stuck = await children.box.run(['yes', 'stuck'], { keep: false });
    // Its pipes and the credit on the way are full by the time that others have done all this.
    for (let i = 0; i < 5; i += 1)
      expect(await sh(children.box, 'head -c 1000000 /dev/zero | wc -c')).toBe('1000000');
    const used = async () =>
      Number((await sh(children.box, `cut -d' ' -f14,15 /proc/${stuck.pid}/stat`)).replace(' ', ''));
    const before = await used();
    await sh(children.box, 'sleep 0.5');
    expect(await used()).toBe(before);
    stuck.signal('SIGKILL');
    stuck.stdout.resume();
    stuck.stderr?.resume();
    expect(await stuck.wait()).toMatchObject({ outcome: { kind: 'signaled', signal: 'SIGKILL' } });
  });

  it('of one that writes without end starves nobody', async () => {
    const noisy = await children.box.run(['yes', 'noise']);
    noisy.stderr?.resume();
    let bytes = 0;
    noisy.stdout.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
    });
    const began = performance.now();
    for (let i = 0; i < 10; i += 1) expect(await sh(children.box, 'echo quick')).toBe('quick');
    const each = (performance.now() - began) / 10;
    expect(bytes).toBeGreaterThan(100_000);
    expect(each).toBeLessThan(2000);
    noisy.close();
  });

  it('that a reader turned away from does not stop the command', async () => {
    const process = await children.box.run({
      shell: 'head -c 3000000 /dev/zero; echo done > /tmp/turned-away',
    });
    process.stderr?.resume();
    process.stdout.destroy();
    expect(await process.wait()).toMatchObject({ exitCode: 0 });
    expect(await sh(children.box, 'cat /tmp/turned-away')).toBe('done');
  });
});

describe('input', () => {
  it('of 5 MB goes in and comes back exactly', async () => {
    const input = randomBytes(5_000_000);
    const process = await children.box.run(['cat'], { stdin: true });
    process.stderr?.resume();
    const back = digest(process.stdout);
    process.stdin?.end(input);
    expect(await back).toEqual({ bytes: input.length, hash: sha256(input) });
    expect(await process.wait()).toMatchObject({ exitCode: 0 });
    const collected = await children.box.exec(['sha256sum'], { stdin: input });
    expect(collected.stdout).toBe(`${sha256(input)}  -\n`);
  });

  it('that is absent is /dev/null; that is empty is an end at once', async () => {
    expect(await sh(children.box, 'readlink /proc/self/fd/0')).toBe('/dev/null');
    const empty = await children.box.exec({ shell: 'readlink /proc/self/fd/0; cat' }, { stdin: '' });
    expect(empty.stdout).toMatch(/^pipe:|^socket:/);
    const open = await children.box.run(['cat'], { stdin: true });
    const ended = open.wait().then(() => 'ended');
    // It waits for its input for as long as there may be some.
    expect(await Promise.race([ended, sh(children.box, 'sleep 0.3; echo waited')])).toBe('waited');
    open.stdin?.end();
    open.stdout.resume();
    open.stderr?.resume();
    expect(await ended).toBe('ended');
  });

  it('that nobody reads stops neither the command nor its caller', async () => {
    const result = await children.box.exec(
      { shell: 'exec 0<&-; echo done' },
      { stdin: randomBytes(3_000_000) },
    );
    expect(result).toMatchObject({ stdout: 'done\n', exit_code: 0 });
    const process = await children.box.run(['true'], { stdin: true });
    process.stdout.resume();
    process.stderr?.resume();
    process.stdin?.write(randomBytes(3_000_000));
    expect(await process.wait()).toMatchObject({ exitCode: 0 });
  });

  it('waits for a command that reads slowly', async () => {
    const process = await children.box.run({ shell: 'sleep 0.5; sha256sum' }, { stdin: true });
    process.stderr?.resume();
    const input = randomBytes(2_000_000);
    const written = process.stdin?.write(input);
    expect(written).toBe(false);
    if (process.stdin) await once(process.stdin, 'drain');
    process.stdin?.end();
    const out = await process.stdout.toArray();
    expect(Buffer.concat(out).toString()).toBe(`${sha256(input)}  -\n`);
  });
});

describe('a process that runs on', () => {
  it('can be joined by others, who are told what they have missed', async () => {
    const first = await children.box.run(
      { shell: 'echo early; read -r line; echo "got $line"' },
      { stdin: true },
    );
    first.stderr?.resume();
    await once(first.stdout, 'readable');
    const second = await children.box.attach(first.handle);
    second.stderr?.resume();
    second.stdin?.write('hello\n');
    const [a, b] = await Promise.all([first.stdout.toArray(), second.stdout.toArray()]);
    expect(Buffer.concat(a).toString()).toBe('early\ngot hello\n');
    expect(Buffer.concat(b).toString()).toBe('early\ngot hello\n');
    expect(await second.wait()).toMatchObject({ exitCode: 0 });
  });

  it('keeps the end of its output when nobody is there, and says what is lost', async () => {
    const process = await children.box.run(
      {
        shell:
          'while [ ! -e /tmp/go ]; do usleep 50000; done; seq 300000; touch /tmp/written; exec sleep 8001',
      },
      { keep: true },
    );
    process.close();
    await sh(children.box, 'touch /tmp/go');
    await eventually(
      async () => (await sh(children.box, 'ls /tmp/written 2>/dev/null || true')) || undefined,
      30_000,
    );
    const later = await children.box.attach(process.handle);
    later.stderr?.resume();
    const gaps: { from: number; to: number }[] = [];
    later.stdout.on('gap', (gap: { from: number; to: number }) => gaps.push(gap));
    let text = '';
    later.stdout.on('data', (chunk: Buffer) => {
      text += chunk.toString();
      if (text.endsWith('\n300000\n')) later.signal('SIGTERM');
    });
    expect(await later.wait()).toMatchObject({ outcome: { kind: 'signaled' } });
    const total = Array.from({ length: 300_000 }, (_, i) => `${i + 1}\n`).join('');
    expect(gaps).toHaveLength(1);
    expect(gaps[0]?.from).toBe(0);
    expect(total.slice(gaps[0]?.to)).toBe(text);
    expect(text.length).toBeGreaterThan(500_000);
  });

  it('is not found once it is gone', async () => {
    const error = await children.box.attach(4_000_000_000).catch((cause: unknown) => cause);
    expect(error).toMatchObject({ code: 'process_not_found', status: 404 });
  });
});
