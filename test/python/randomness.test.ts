import { expect, it } from 'vitest';
import { fork, inEach, template } from '../sandbox/support.js';
import { distinct } from '../support/wait.js';

// Every generator has been used before the snapshot: a copy that is not seeded anew repeats its siblings.
const yaml = `base: debian:bookworm
packages: [python3, python3-numpy]
interpreters:
  - name: python
    init: |
      import numpy, os, random, secrets, ssl, tempfile, uuid
      random.random(); numpy.random.random(); numpy.random.normal(); random.gauss(0, 1); secrets.token_hex(); uuid.uuid4(); uuid.uuid1()
      tempfile.mktemp(); ssl.RAND_bytes(16)
      context = ssl.create_default_context()
memory: 512M
`;

const draws = {
  'os.urandom': 'os.urandom(16).hex()',
  random: 'random.random()',
  // Drawn in pairs: the second of the template's is left over.
  'random.gauss': 'random.gauss(0, 1)',
  'numpy normal': 'float(numpy.random.normal())',
  'random.SystemRandom': 'random.SystemRandom().random()',
  'numpy global state': 'float(numpy.random.random())',
  'numpy new generator': 'float(numpy.random.default_rng().random())',
  secrets: 'secrets.token_hex(16)',
  uuid4: 'str(uuid.uuid4())',
  uuid1: 'str(uuid.uuid1())',
  'tempfile name': 'tempfile.mktemp()',
  'OpenSSL bytes': 'ssl.RAND_bytes(16).hex()',
  'TLS client random': 'client_random()',
};

const code = `
def client_random():
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="example.org")
    try: tls.do_handshake()
    except ssl.SSLWantReadError: pass
    return out.read()[11:43].hex()

import json
print(json.dumps([${Object.values(draws).join(', ')}]))
`;

it('50 children draw different random numbers from every generator', async () => {
  await using source = await template(yaml, 'python-seeded');
  await using children = await fork(50, { snapshot: source.tag });
  const answers = await inEach(children.boxes, (box) => box.eval(code, { timeoutSecs: 120 }));
  const rows = answers.map(({ stdout, stderr, error }) => {
    expect({ stderr, error }).toEqual({ stderr: '', error: null });
    return JSON.parse(stdout) as unknown[];
  });
  for (const [at, name] of Object.keys(draws).entries()) {
    const values = rows.map((row) => row[at]);
    expect({ name, distinct: distinct(values) }).toEqual({ name, distinct: 50 });
  }
}, 300_000);
