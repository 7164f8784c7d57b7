import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { type Children, fork, inEach, sh } from '../sandbox/support.js';
import { distinct } from '../support/wait.js';

/** Children of several forks, as of one. */
function together(forks: readonly Children[]): Pick<Children, 'boxes'> & AsyncDisposable {
  return {
    boxes: forks.flatMap(({ boxes }) => boxes),
    async [Symbol.asyncDispose]() {
      await Promise.all(forks.map((children) => children[Symbol.asyncDispose]()));
    },
  };
}

const facts = [
  'cat /run/forkd/generation',
  'hostname',
  'cat /etc/hostname',
  'cat /etc/machine-id',
  'head -c 32 /dev/urandom | sha256sum',
  'cat /proc/sys/kernel/random/uuid',
  'mktemp -u',
  // What a child alone was given: a key, say, to what is outside.
  'echo $TOKEN',
];
const CHILDREN = 50;

it(`${CHILDREN} children differ in all that says who they are, and in all that is drawn`, {
  timeout: 240_000,
}, async () => {
  const tokens = Array.from({ length: CHILDREN }, () => randomUUID());
  await using children = together(
    await Promise.all(tokens.map((token) => fork(1, { env: { TOKEN: token } }))),
  );
  const answers = await inEach(children.boxes, async (box) => (await sh(box, facts.join('; '))).split('\n'));
  for (const [row, fact] of facts.entries()) {
    const values = answers.map((answer) => answer[row]);
    expect({ fact, distinct: distinct(values) }).toEqual({ fact, distinct: CHILDREN });
  }
  for (const [at, answer] of answers.entries()) {
    const info = children.boxes[at]?.lastInfo;
    expect(answer.slice(0, 3)).toEqual([info?.generation, info?.hostname, info?.hostname]);
    expect(answer[3]).toMatch(/^[0-9a-f]{32}$/);
    expect(answer.at(-1)).toBe(tokens[at]);
  }
});

it('children have the environment, the metadata and the names of their fork', async () => {
  await using children = await fork(3, {
    env: { TASK: 'a b', EMPTY: '', LINES: 'one\ntwo', UNI: 'ünï' },
    metadata: { owner: 'o"1', note: 'line\nbreak' },
    hostnamePrefix: 'web',
  });
  for (const [at, box] of children.boxes.entries()) {
    expect(await sh(box, 'printf "%s|%s|%s|%s" "$TASK" "$EMPTY" "$LINES" "$UNI"')).toBe('a b||one\ntwo|ünï');
    expect(JSON.parse(await sh(box, 'cat /run/forkd/metadata.json'))).toEqual({
      owner: 'o"1',
      note: 'line\nbreak',
    });
    expect(await sh(box, 'hostname; grep -c "web-" /etc/hosts')).toBe(`web-${at}\n1`);
    expect(box.lastInfo?.metadata).toEqual({ owner: 'o"1', note: 'line\nbreak' });
  }
});

it('a call may add to the environment of its child, for itself only', async () => {
  await using children = await fork(1, { env: { A: 'child', B: 'child' } });
  expect(await sh(children.box, 'echo $A $B $C', { env: { A: 'call', C: 'call' } })).toBe('call child call');
  expect(await sh(children.box, 'echo $A $B $C')).toBe('child child');
});
