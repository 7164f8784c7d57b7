import { execFileSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { writeCpio } from './cpio.js';
import { decodeBlock, decodeLegacyFrame } from './lz4.js';
import { RunError, run } from './run.js';
import { writeTar } from './tar.js';
import { extractVmlinux } from './vmlinux.js';

describe('LZ4', () => {
  it('copies literals and matches that overlap what they make', () => {
    // "abc", then 9 bytes from 3 back, then the last literals "xy".
    const block = Buffer.from([0x35, 0x61, 0x62, 0x63, 3, 0, 0x20, 0x78, 0x79]);
    const to = Buffer.alloc(32);
    const end = decodeBlock(block, to, 0);
    expect(to.toString('latin1', 0, end)).toBe('abcabcabcabcxy');
  });

  it('reads lengths that go on in further bytes', () => {
    // 15 + 255 + 3 literals.
    const literals = Buffer.alloc(273, 'q');
    const block = Buffer.concat([Buffer.from([0xf0, 255, 3]), literals]);
    const to = Buffer.alloc(300);
    expect(decodeBlock(block, to, 0)).toBe(273);
    expect(to.subarray(0, 273)).toEqual(literals);
  });

  it.each([
    ['a literal run past the end', [0x50, 1, 2]],
    ['a distance before the start', [0x10, 1, 9, 0, 0]],
    ['distance 0', [0x10, 1, 0, 0, 0]],
    ['a cut length', [0xf0, 255]],
  ])('refuses %s', (_what, bytes) => {
    expect(() => decodeBlock(Buffer.from(bytes), Buffer.alloc(64), 0)).toThrow(RangeError);
  });

  it('refuses a frame whose block passes the end', () => {
    const frame = Buffer.from([0x02, 0x21, 0x4c, 0x18, 0xff, 0, 0, 0, 1, 2, 3]);
    expect(() => decodeLegacyFrame(frame)).toThrow(/passes the end/);
  });
});

describe('bzImage', () => {
  it('is refused by name of what is wrong', () => {
    expect(() => extractVmlinux(Buffer.alloc(2048))).toThrow(/no boot header/);
    const image = Buffer.alloc(4096);
    image.write('HdrS', 0x202);
    image.writeUInt32LE(1 << 20, 0x24c);
    expect(() => extractVmlinux(image)).toThrow(/passes the end/);
  });
});

describe('cpio', () => {
  const entries = [
    { type: 'directory', path: 'dev' },
    { type: 'character', path: 'dev/console', major: 5, minor: 1 },
    { type: 'file', path: 'init', content: Buffer.from('12345'), mode: 0o755 },
    { type: 'symlink', path: 'link', target: 'init' },
  ] as const;

  it('has fields where newc has them, and is padded', () => {
    const archive = writeCpio(entries);
    expect(archive.length % 512).toBe(0);
    expect(archive.toString('latin1', 0, 6)).toBe('070701');
    // mode of the first entry
    expect(archive.toString('latin1', 14, 22)).toBe('000041ed');
    expect(archive.toString('latin1')).toContain('TRAILER!!!\0');
    const at = archive.indexOf('init\0') - 110;
    expect(at % 4).toBe(0);
    expect(archive.toString('latin1', at + 54, at + 62)).toBe('00000005');
    expect(archive.toString('latin1', at + 116, at + 121)).toBe('12345');
  });

  it('is the same bytes for the same content', () => {
    expect(writeCpio(entries)).toEqual(writeCpio(entries));
  });

  it('refuses absolute and double paths', () => {
    expect(() => writeCpio([{ type: 'directory', path: '/dev' }])).toThrow(/path "\/dev"/);
    expect(() => writeCpio([entries[0], entries[0]])).toThrow(/double path "dev"/);
  });
});

describe('tar', () => {
  it('is what tar reads', () => {
    const archive = writeTar([
      { type: 'directory', path: 'tmp', mode: 0o1777 },
      { type: 'file', path: 'tmp/a', content: Buffer.from('hello'), mode: 0o755 },
      { type: 'symlink', path: 'tmp/b', target: 'a' },
    ]);
    const listing = execFileSync('tar', ['-tv', '--numeric-owner'], { input: archive }).toString();
    expect(listing).toMatch(
      /^drwxrwxrwt 0\/0 .* tmp\/?\n-rwxr-xr-x 0\/0 +5 .* tmp\/a\nlrwxrwxrwx 0\/0 .* tmp\/b -> a\n$/,
    );
  });

  it('refuses names that do not fit', () => {
    expect(() => writeTar([{ type: 'directory', path: 'x'.repeat(101) }])).toThrow(/does not fit/);
  });
});

describe('run', () => {
  it('returns output, and the end of it with a failure', async () => {
    expect((await run('sh', ['-c', 'echo out'], { collect: true })).toString()).toBe('out\n');
    const failure = run('sh', ['-c', 'echo broken >&2; exit 3']);
    await expect(failure).rejects.toMatchObject({ kind: 'failed', output: 'broken\n' });
    await expect(failure).rejects.toThrow('sh exited with 3: broken');
  });

  it('names a program that is missing', async () => {
    await expect(run('forkd-no-such-program', [])).rejects.toMatchObject({ kind: 'missing' });
  });

  it('ends the whole group at its deadline and when cancelled', async () => {
    const hang = ['-c', 'sleep 60 & sleep 60'];
    await expect(run('sh', hang, { timeoutMs: 50 })).rejects.toBeInstanceOf(RunError);
    await expect(run('sh', hang, { signal: AbortSignal.timeout(50) })).rejects.toMatchObject({
      code: 'cancelled',
    });
  });

  it('feeds input, also to a program that does not read it', async () => {
    const big = Buffer.alloc(1 << 20, 'x');
    expect((await run('wc', ['-c'], { input: big, collect: true })).toString().trim()).toBe('1048576');
    await run('true', [], { input: big });
  });
});
