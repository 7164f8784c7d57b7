import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startDaemon, type TestDaemon } from './testing/daemon.js';

let test: TestDaemon;
beforeAll(async () => {
  test = await startDaemon();
  await test.build();
});
afterAll(() => test[Symbol.asyncDispose]());

interface Error {
  error: string;
  code: string;
  remedy: string;
}

async function refused(method: string, path: string, body?: unknown): Promise<Error & { status: number }> {
  const { status, body: answer } = await test.call<Error>(method, path, body);
  expect(answer.error).not.toMatch(/[{}]/);
  expect(answer.remedy).not.toMatch(/[{}]/);
  expect(answer.remedy.length).toBeGreaterThan(10);
  return { ...answer, status };
}

describe('a fork request', () => {
  const fork = (body: unknown) => refused('POST', '/v1/sandboxes', body);

  it.each([
    [0, 'n: 0 is less than 1'],
    [-1, 'n: -1 is less than 1'],
    [1001, 'n: 1001 is more than 1000'],
    ['3', 'n: "3" is not of type integer'],
    [1.5, 'n: 1.5 is not of type integer'],
    [1e300, 'is more than 1000'],
    [null, 'n: null is not of type integer'],
  ])('with n = %j is refused and names the value', async (n, problem) => {
    const error = await fork({ snapshot_tag: 'base', n });
    expect(error).toMatchObject({ status: 400, code: 'invalid_argument' });
    expect(error.error).toContain(problem);
    expect((await test.call<unknown[]>('GET', '/v1/sandboxes')).body).toEqual([]);
  });

  it.each([
    '../base',
    '.',
    '..',
    'a/b',
    'base\n',
    '-base',
    '',
    'a.b',
    'x'.repeat(65),
    'b\u0000',
    'bäse',
    "b'",
  ])('of the name %j is refused', async (name) => {
    const error = await fork({ snapshot_tag: name });
    expect(error).toMatchObject({ status: 400, code: 'invalid_argument' });
    expect(error.error).toContain('snapshot_tag: ');
    expect(error.error).not.toContain('\n');
  });

  it('with an unknown field names it and those that exist', async () => {
    const error = await fork({ snapshot_tag: 'base', count: 3 });
    expect(error).toMatchObject({ status: 400, code: 'unknown_field', error: 'unknown field "count"' });
    expect(error.remedy).toContain('snapshot_tag, n, env');
  });

  it('without a snapshot says that it is missing', async () => {
    expect(await fork({})).toMatchObject({ code: 'invalid_argument', error: 'snapshot_tag: it is missing' });
  });

  it('of what does not exist is a 404', async () => {
    expect(await fork({ snapshot_tag: 'nothing' })).toMatchObject({
      status: 404,
      code: 'snapshot_not_found',
    });
    const id = 'sn-0123456789abcdef';
    expect(await fork({ snapshot_tag: id })).toMatchObject({ status: 404, code: 'snapshot_not_found' });
    expect((await test.call<unknown[]>('GET', '/v1/sandboxes')).body).toEqual([]);
  });

  it.each([
    [{ 'A=B': 'x' }, 'env: the name "A=B" is not allowed'],
    [{ A: 'secret\u0000' }, 'env.A: its value contains a NUL byte'],
    [{ A: 1 }, 'env.A: its value is not of type string'],
    [['A=B'], 'env: its value is not of type object'],
  ])('with env %j is refused without telling values', async (env, problem) => {
    const error = await fork({ snapshot_tag: 'base', env });
    expect(error.error).toContain(problem);
    expect(error.error).not.toContain('secret');
  });

  it('with what forkd v1 could and this daemon cannot is refused by name', async () => {
    const error = await fork({ snapshot_tag: 'base', per_child_netns: true });
    expect(error).toMatchObject({ code: 'unsupported', error: 'per_child_netns: true is not supported' });
  });

  it('that is no JSON, no object, or of another type is refused', async () => {
    expect(await fork('{"n": ')).toMatchObject({ status: 400, code: 'invalid_json' });
    expect(await fork('{"__proto__": {}, "snapshot_tag": "base"}')).toMatchObject({ code: 'invalid_json' });
    expect(await fork('[]')).toMatchObject({ code: 'invalid_argument' });
    expect(await fork('')).toMatchObject({ code: 'invalid_argument' });
    const { status, body } = await test.call<Error>('POST', '/v1/sandboxes', 'x', {
      'content-type': 'text/css',
    });
    expect({ status, code: body.code }).toEqual({ status: 415, code: 'unsupported_media_type' });
  });

  it('larger than the limit is refused with the limit', async () => {
    const error = await fork({ snapshot_tag: 'base', metadata: { a: 'x'.repeat(17 * 1024 * 1024) } });
    expect(error).toMatchObject({ status: 413, code: 'payload_too_large' });
    expect(error.error).toContain('16777216');
  });
});

describe('an exec request', () => {
  const id = 'sb-0123456789abcdef';
  const exec = (body: unknown) => refused('POST', `/v1/sandboxes/${id}/exec`, body);

  it.each([
    [{ args: [] }, 'args: [] is empty'],
    [{ args: ['a\u0000b'] }, 'args.0: "a\\u0000b" contains a NUL byte'],
    [{ args: 'ls' }, 'args: "ls" is not of type array'],
    [{ args: ['ls'], timeout_secs: -1 }, 'timeout_secs: -1 is less than 0'],
    [{ args: ['ls'], timeout_secs: 1e12 }, 'timeout_secs: 1000000000000 is more than 2000000'],
    [{ args: ['ls'], encoding: 'latin1' }, 'encoding: "latin1" is none of the forms'],
    [{ args: ['ls'], cwd: '' }, 'cwd: "" is empty'],
  ])('%j is refused', async (body, problem) => {
    expect((await exec(body)).error).toContain(problem);
  });

  it('for a sandbox that does not exist is a 404', async () => {
    expect(await exec({ args: ['ls'] })).toMatchObject({ status: 404, code: 'sandbox_not_found' });
  });
});

describe('a path', () => {
  it.each(['sb-x', '..%2f..', '%00', 'a%0ab', `sb-${'0'.repeat(900)}`])(
    'with the sandbox id %s is a 404',
    async (id) => {
      const error = await refused('GET', `/v1/sandboxes/${id}`);
      expect(error).toMatchObject({ status: 404, code: 'sandbox_not_found' });
      expect(error.error).not.toContain('\n');
    },
  );

  it('that is no route, or cannot be decoded, is answered in forkd terms', async () => {
    expect(await refused('GET', '/nothing')).toMatchObject({ status: 404, code: 'route_not_found' });
    expect(await refused('PATCH', '/v1/sandboxes')).toMatchObject({ status: 404, code: 'route_not_found' });
    expect(await refused('GET', '/v1/sandboxes/%zz')).toMatchObject({
      status: 400,
      code: 'invalid_argument',
    });
  });

  it('with an unknown query parameter names it', async () => {
    const error = await refused('GET', '/v1/sandboxes?memry=true');
    expect(error).toMatchObject({ code: 'unknown_field', error: 'unknown field "memry"' });
  });
});

describe('a build request', () => {
  const build = (body: unknown) => refused('POST', '/v1/templates/build', body);

  it('of an unknown template, a path or a bad file fails before it begins', async () => {
    expect(await build({ template: 'nothing' })).toMatchObject({ status: 404, code: 'template_not_found' });
    expect(await build({ template: '../base' })).toMatchObject({ status: 400, code: 'invalid_argument' });
    expect(await build({ template: { yaml: 'bad', dir: '/' }, tag: 'x' })).toMatchObject({
      status: 400,
      code: 'template_invalid',
    });
    expect(await build({ template: { yaml: 'x: 1' } })).toMatchObject({ code: 'invalid_argument' });
    expect(await build({ template: 'base', tag: 'a/b' })).toMatchObject({ code: 'invalid_argument' });
  });
});

describe('what describes the daemon', () => {
  it('is there', async () => {
    expect((await test.call('GET', '/healthz')).body).toEqual({ ok: true });
    expect((await test.call('GET', '/version')).body).toMatchObject({ api: 'v1' });
    expect((await test.call('GET', '/v1/daemon')).body).toMatchObject({
      pid: process.pid,
      home: test.home,
      tcp: null,
    });
    expect((await test.call('GET', '/v1/host')).body).toMatchObject({ choice: { engine: 'qemu' } });
    const { text } = await test.call('GET', '/metrics');
    expect(text).toContain('forkd_sandboxes{state="running"} 0');
  });

  it('is an OpenAPI document whose references resolve', async () => {
    const { text, body } = await test.call<{ paths: object; components: { schemas: object } }>(
      'GET',
      '/openapi.json',
    );
    expect(Object.keys(body.paths)).toContain('/v1/sandboxes/{id}/exec');
    for (const [, name] of text.matchAll(/"#\/components\/schemas\/(\w+)"/g)) {
      expect(Object.keys(body.components.schemas)).toContain(name);
    }
    expect(text).not.toContain('"$id"');
  });
});
