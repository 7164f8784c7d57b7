import { describe, expect, it } from 'vitest';
import { client, fork, inEach, sh } from '../sandbox/support.js';

const CHILDREN = 50;
const places = ['/root/mine', '/etc/mine', '/tmp/mine', '/dev/shm/mine', '/run/mine'];

describe('children of one snapshot', () => {
  it(`never see what another one writes, in memory or on disk: ${CHILDREN} of them`, {
    timeout: 240_000,
  }, async () => {
    await using children = await fork(CHILDREN);
    const write = (value: string) =>
      `for f in ${places.join(' ')}; do yes ${value} | head -c 16000 > $f; done; sync; echo 3 > /proc/sys/vm/drop_caches`;
    const read = `for f in ${places.join(' ')}; do uniq $f; done`;
    for (let round = 0; round < 2; round += 1) {
      const expected = children.boxes.map((box) => `${box.id}-${round}`);
      await inEach(children.boxes, (box, at) => sh(box, write(String(expected[at]))));
      const found = await inEach(children.boxes, (box) => sh(box, read));
      for (const [at, text] of found.entries()) {
        // The cut-off last line is a part of the value.
        const lines = text.split('\n');
        for (const line of lines) expect(expected[at]?.startsWith(line)).toBe(true);
        expect(lines.filter((line) => line === expected[at])).toHaveLength(places.length);
      }
    }
    await using later = await fork(1);
    expect(await sh(later.box, `ls ${places.join(' ')} 2>/dev/null | wc -l`)).toBe('0');
    expect(await client().snapshots.verify('busybox')).toMatchObject({ ok: true });
  });

  it('do not share processes, signals or ports', async () => {
    await using children = await fork(2);
    const [first, second] = children.boxes;
    if (!first || !second) throw new Error('two are needed');
    await sh(
      first,
      '(sleep 4711 &) ; (while :; do echo one | nc -l -p 8080 127.0.0.1; done) >/dev/null 2>&1 &',
    );
    await sh(second, '(while :; do echo two | nc -l -p 8080 127.0.0.1; done) >/dev/null 2>&1 &');
    expect(await sh(second, 'ps | grep -c "[s]leep 4711" || true')).toBe('0');
    const ask =
      'ip link set lo up; for i in $(seq 50); do nc 127.0.0.1 8080 </dev/null && break; usleep 50000; done';
    expect(await sh(first, ask)).toBe('one');
    expect(await sh(second, ask)).toBe('two');
  });
});
