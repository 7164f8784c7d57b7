import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { forkd, forkdJson, startForkd } from '../support/cli.js';
import { type Forked, fork } from '../support/sandboxes.js';

let box: Forked;
beforeAll(async () => {
  box = await fork();
});
afterAll(async () => {
  await box?.[Symbol.asyncDispose]();
});

const exec = (...args: string[]) => forkd(['exec', box.id, ...args]);

describe('forkd exec', () => {
  it('passes output and exit code through', async () => {
    expect(await exec('sh', '-c', 'echo out; echo err >&2; exit 7')).toEqual({
      code: 7,
      stdout: 'out\n',
      stderr: 'err\n',
    });
  });

  it('has no shell in between', async () => {
    expect((await exec('echo', '*', '$HOME', 'a  b', '', '-n', '--json')).stdout).toBe(
      '* $HOME a  b  -n --json\n',
    );
  });

  it('says death by a signal as shells do', async () => {
    expect((await exec('sh', '-c', 'kill -TERM $$')).code).toBe(143);
  });

  it('kills what is over its time, with all it has started', async () => {
    const result = await forkd(['exec', '--timeout', '1', box.id, 'sh', '-c', 'sleep 1000 & sleep 1000']);
    expect(result.code).toBe(124);
    expect((await exec('sh', '-c', 'ps | grep -c "[s]leep 1000"')).stdout).toBe('0\n');
  });

  it('takes environment, directory and user', async () => {
    const result = await forkd([
      'exec',
      '-e',
      'A=1 2',
      '-w',
      '/tmp',
      '-u',
      '1234',
      box.id,
      'sh',
      '-c',
      'echo "$A $PWD $(id -u)"',
    ]);
    expect(result).toMatchObject({ code: 0, stdout: '1 2 /tmp 1234\n' });
  });

  it('carries binary input of any size and its end', async () => {
    const input = Buffer.alloc(3_000_000);
    for (let i = 0; i < input.length; i += 1) input[i] = (i * 31) % 256;
    const result = await forkd(['exec', '-i', box.id, 'md5sum'], { input });
    const { createHash } = await import('node:crypto');
    expect(result.stdout).toBe(`${createHash('md5').update(input).digest('hex')}  -\n`);
  });

  it('gives /dev/null to a command that reads without -i', async () => {
    expect(await forkd(['exec', box.id, 'cat'], { input: 'not for it' })).toMatchObject({
      code: 0,
      stdout: '',
    });
  });

  it('answers JSON when asked', async () => {
    const answer = await forkdJson(['exec', box.id, 'echo', 'x']);
    expect(answer).toMatchObject({ stdout: 'x\n', exit_code: 0, outcome: { kind: 'exited', code: 0 } });
  });

  it('sends the first ctrl-C to the command', async () => {
    const child = startForkd([
      'exec',
      box.id,
      'sh',
      '-c',
      'trap "echo caught; exit 5" INT; echo ready; while :; do sleep 0.1; done',
    ]);
    let stdout = '';
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk.toString();
      if (stdout === 'ready\n') child.kill('SIGINT');
    });
    const code = await new Promise((resolve) => child.on('close', resolve));
    expect({ code, stdout }).toEqual({ code: 5, stdout: 'ready\ncaught\n' });
  });

  it('kills the command when the client is told to end', async () => {
    const child = startForkd(['exec', box.id, 'sh', '-c', 'echo ready; exec sleep 4321']);
    child.stdout.on('data', () => child.kill('SIGTERM'));
    expect(await new Promise((resolve) => child.on('close', resolve))).toBe(143);
    const { stdout } = await exec(
      'sh',
      '-c',
      'for i in $(seq 50); do pidof -o $$ sleep >/dev/null || { echo gone; exit; }; sleep 0.1; done',
    );
    expect(stdout).toBe('gone\n');
  });

  it('stops a writer that nobody reads any more', async () => {
    const child = startForkd(['exec', box.id, 'yes']);
    child.stdout.once('data', () => child.stdout.destroy());
    expect(await new Promise((resolve) => child.on('exit', resolve))).toBe(0);
  });
});

describe('bad input to forkd exec', () => {
  const cases: [string, string[], number, RegExp][] = [
    ['a command that is not there', ['nope'], 64, /error: command "nope" is not in the sandbox/],
    ['a file that is not executable', ['/etc/passwd'], 64, /cannot be executed/],
    ['an unknown sandbox', [], 66, /there is no sandbox sb-0000000000000000/],
    ['a name that is a path', [], 66, /there is no sandbox "\.\.\/\.\."|sandbox/],
  ];
  it.each(cases)('%s', async (name, args, code, message) => {
    const id = name.includes('unknown') ? 'sb-0000000000000000' : name.includes('path') ? '../..' : box.id;
    const result = await forkd(['exec', id, ...(args.length > 0 ? args : ['true'])]);
    expect(result.stderr).toMatch(message);
    expect(result.stderr).toMatch(/^hint: /m);
    expect(name.includes('path') ? [64, 66] : [code]).toContain(result.code);
  });

  it('a directory that is a file', async () => {
    const result = await forkd(['exec', '-w', '/etc/passwd', box.id, 'true']);
    expect(result).toMatchObject({ code: 64 });
    expect(result.stderr).toContain('/etc/passwd');
  });

  it('a user that does not exist', async () => {
    const result = await forkd(['exec', '-u', 'nobody-at-all', box.id, 'true']);
    expect(result.code).toBe(64);
    expect(result.stderr).toContain('nobody-at-all');
  });

  it('an argument over 128 KiB', async () => {
    // Our own kernel has the same limit, so it comes by the environment of a file.
    const result = await forkd(['exec', box.id, 'echo', 'x'.repeat(131_071)]);
    expect(result).toMatchObject({ code: 0 });
  });
});
