import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { EngineError } from '../errors.js';
import type { BuildProgress } from '../types.js';
import { canonicalJson, findHostFiles, templateDigest } from './digest.js';
import { BuildLog } from './log.js';
import { parseTemplate } from './parse.js';
import { BuildSteps } from './steps.js';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'forkd-build-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

describe('the digest of a template', () => {
  const digest = (yaml: string, image = 'i') =>
    templateDigest({
      spec: parseTemplate(yaml, 'x'),
      files: {},
      kernel: 'k',
      initramfs: 'r',
      image,
      pin: { engine: 'qemu', accelerator: 'tcg' },
    });

  it('is the same for what makes the same machine', () => {
    const one = digest('base: busybox\nenv: {A: 1, B: 2}\nsetup: [echo]');
    expect(digest('setup: [{run: echo}]\nenv: {B: "2", A: "1"}\nbase: busybox\ndescription: other')).toBe(
      one,
    );
  });

  it.each(['memory: 1G', 'setup: [true]', 'env: {A: 1}', 'user: user', 'vcpus: 2', 'warm_up: ["true"]'])(
    'changes with %s',
    (field) => {
      expect(digest(`base: busybox\n${field.replace('[true]', '["true"]')}`)).not.toBe(
        digest('base: busybox'),
      );
    },
  );

  it('changes with the image', () => {
    expect(digest('base: busybox', 'j')).not.toBe(digest('base: busybox'));
  });

  it('does not hang on the order of keys', () => {
    expect(canonicalJson({ b: [1, { d: null, c: undefined }], a: 'x' })).toBe('{"a":"x","b":[1,{"d":null}]}');
  });
});

describe('files of the host', () => {
  const spec = (from: string) => parseTemplate(`base: busybox\nfiles: [{path: /a, from: ${from}}]`, 'x');

  it('are hashed by content', async () => {
    await writeFile(join(dir, 'f'), 'one');
    const first = (await findHostFiles(spec('f'), dir)).get('/a');
    await writeFile(join(dir, 'f'), 'two');
    expect((await findHostFiles(spec('f'), dir)).get('/a')?.sha256).not.toBe(first?.sha256);
  });

  it.each([
    ['missing', 'f', /files\[0\].from: .*\/f cannot be read \(ENOENT\)/],
    ['a directory', '.', /is not a regular file/],
    ['a device', '/dev/zero', /\/dev\/zero is not a regular file/],
  ])('are refused when %s', async (_what, from, message) => {
    await expect(findHostFiles(spec(from), dir)).rejects.toThrow(message);
  });

  it('need a directory when relative', async () => {
    await expect(findHostFiles(spec('f'), undefined)).rejects.toThrow(/the template has no directory/);
  });
});

describe('a step', () => {
  const start = async (signal?: AbortSignal) => {
    const log = await BuildLog.open(dir, 'x');
    const events: BuildProgress[] = [];
    const steps = new BuildSteps({ name: 'x', log, signal, onProgress: (event) => events.push(event) });
    return { log, events, steps };
  };

  it('is told and logged, with its output', async () => {
    const { log, events, steps } = await start();
    await steps.run('one', 'First', async ({ line }) => line('hello'), { detail: () => 'fine' });
    await log[Symbol.asyncDispose]();
    expect(events).toMatchObject([
      { type: 'step', step: 'one', state: 'running' },
      { type: 'log', step: 'one', text: 'hello\n' },
      { type: 'step', step: 'one', state: 'done', detail: 'fine' },
    ]);
    expect(await readFile(log.path, 'utf8')).toMatch(/== one: First\nhello\n== one: done in .* s: fine\n/);
  });

  it('that fails names itself, its output and the log', async () => {
    await using log = (await start()).log;
    const steps = new BuildSteps({ name: 'x', log });
    const failure = steps.run('two', 'Second', async ({ line }) => {
      line('the reason');
      throw new Error('broke');
    });
    await expect(failure).rejects.toMatchObject({
      code: 'build_failed',
      message: 'building template x failed in step two: broke',
      details: { step: 'two', output: 'the reason\n', log: log.path },
    });
  });

  it('passes on what tells of the host', async () => {
    await using log = (await start()).log;
    const steps = new BuildSteps({ name: 'x', log });
    const failure = steps.run('image', 'Image', async () => {
      throw new EngineError('host_unfit', 'no mmdebstrap', { remedy: 'install it' });
    });
    await expect(failure).rejects.toMatchObject({
      code: 'host_unfit',
      message: 'no mmdebstrap',
      remedy: 'install it',
    });
  });

  it('that is cancelled says so, whatever broke in it', async () => {
    const controller = new AbortController();
    await using log = (await start()).log;
    const steps = new BuildSteps({ name: 'x', log, signal: controller.signal });
    const failure = steps.run('boot', 'Boot', async () => {
      controller.abort();
      throw new Error('connection lost');
    });
    await expect(failure).rejects.toMatchObject({ code: 'build_cancelled' });
    await expect(steps.run('next', 'Next', async () => 1)).rejects.toMatchObject({ code: 'build_cancelled' });
  });
});

it('logs of a template are kept to the newest', async () => {
  const paths: string[] = [];
  for (let i = 0; i < 23; i++) {
    await using log = await BuildLog.open(dir, 'x');
    paths.push(log.path);
  }
  expect(new Set(paths).size).toBe(23);
  await expect(readFile(paths[0]!)).rejects.toThrow('ENOENT');
  expect(await readFile(paths.at(-1)!, 'utf8')).toBe('');
});
