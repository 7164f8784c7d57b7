import type { SnapshotDetail } from '@forkd/api';
import { expect, it } from 'vitest';
import { client, fork, inEach, sh, template } from '../sandbox/support.js';
import { distinct } from '../support/wait.js';

// Every generator has been used before the snapshot: a copy that is not seeded anew repeats its siblings.
const yaml = `base: debian:bookworm
npm: [ms, "semver@7"]
interpreters:
  - name: node
    init: |
      const crypto = require('crypto');
      const tls = require('tls');
      const { Duplex } = require('stream');
      const { Worker } = require('worker_threads');
      Math.random(); crypto.randomUUID(); crypto.randomBytes(16); crypto.randomInt(100);
      // Made in OpenSSL, which JavaScript cannot reach.
      const key = () => crypto.generateKeySync('aes', { length: 128 }).export().toString('hex');
      const pair = () => crypto.generateKeyPairSync('ed25519').publicKey.export({ type: 'spki', format: 'der' }).toString('hex');
      const inWorker = () => new Promise((resolve) => new Worker(
        "require('worker_threads').parentPort.postMessage(require('crypto').randomBytes(16).toString('hex'))",
        { eval: true }).on('message', resolve));
      const clientRandom = () => new Promise((resolve) => {
        const wire = new Duplex({ read() {}, write(chunk, _, done) { resolve(chunk.subarray(11, 43).toString('hex')); done(); } });
        tls.connect({ socket: wire, servername: 'example.org' }).on('error', () => {});
      });
      key(); pair(); clientRandom();
memory: 512M
`;

const draws = {
  'Math.random': 'Math.random()',
  'crypto.randomBytes': "crypto.randomBytes(16).toString('hex')",
  'crypto.randomInt': 'crypto.randomInt(2 ** 47)',
  'crypto.randomUUID': 'crypto.randomUUID()',
  getRandomValues: 'crypto.webcrypto.getRandomValues(new Uint32Array(4)).join()',
  'a key of OpenSSL': 'key()',
  'a key pair of OpenSSL': 'pair()',
  'OpenSSL in a worker': 'await inWorker()',
  'TLS client random': 'await clientRandom()',
};
const CHILDREN = 50;

it('children of a warm Node have its packages, and draw different random numbers from every generator', async () => {
  await using source = await template(yaml, 'node-seeded');
  const { manifest } = (await client().snapshots.get(source.tag)) as SnapshotDetail & {
    manifest: { build: { packages: { npm: { name: string; version: string; hash: string }[] } } };
  };
  const { npm } = manifest.build.packages;
  expect(npm.map(({ name }) => name)).toEqual(['ms', 'semver']);
  for (const { hash } of npm) expect(hash).toMatch(/^sha512-/);
  await using children = await fork(CHILDREN, { snapshot: source.tag });
  expect(await children.box.eval("require('ms')('2h')")).toMatchObject({ result: '7200000' });
  expect(await sh(children.box, 'head -n 1 /usr/local/bin/semver')).toBe('#!/usr/bin/env node');

  const code = `console.log(JSON.stringify([${Object.values(draws).join(', ')}]))`;
  const answers = await inEach(children.boxes, (box) => box.eval(code, { timeoutSecs: 240 }));
  const rows = answers.map(({ stdout, stderr, error }) => {
    expect({ stderr, error }).toEqual({ stderr: '', error: null });
    return JSON.parse(stdout) as unknown[];
  });
  for (const [at, name] of Object.keys(draws).entries()) {
    const values = rows.map((row) => row[at]);
    expect({ name, distinct: distinct(values) }).toEqual({ name, distinct: CHILDREN });
  }
}, 600_000);
