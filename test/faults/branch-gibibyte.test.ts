import { expect, it } from 'vitest';
import { branch } from '../branch/support.js';
import { fork, sh, template } from '../sandbox/support.js';
import { eventually } from '../support/wait.js';

const BLOCKS = 256;

/**
 * A file of 1 GiB, block by block: each differs, is on the disk before its sum is written down, and the list of sums is synced as well. Then a
 * word that all is done.
 */
const WRITER = `i=0; while [ $i -lt ${BLOCKS} ]; do
  (echo $i; cat /dev/shm/seed) | dd of=/root/file bs=4M count=1 iflag=fullblock conv=notrunc,fsync seek=$i 2>/dev/null || exit 1
  sum=$( (echo $i; cat /dev/shm/seed) | head -c 4194304 | md5sum) && echo $sum >> /root/sums && sync || exit 1
  i=$((i+1))
done; echo done > /root/done; sync`;

/** Reads from the disk, not from memory, every block whose sum is written down; answers how many there are, and prints each that is another. */
const CHECK = `echo 3 > /proc/sys/vm/drop_caches; i=0; while read sum rest; do
  got=$(dd if=/root/file bs=4M count=1 skip=$i 2>/dev/null | md5sum); [ "\${got%% *}" = $sum ] || echo block $i is wrong
  i=$((i+1))
done < /root/sums; echo $i`;
const NO_ERRORS = 'dmesg | grep -ciE "ext4.*error|I/O error" || true';

it('a file of 1 GiB is written and fsynced through branches: what was synced is there, writing goes on, and all sums agree, in source and child', {
  timeout: 1_200_000,
}, async () => {
  await using source = await template('base: busybox\nmemory: 256M\ndisk: 2G\n', 'gibibyte');
  await using children = await fork(1, { snapshot: source.tag });
  const { box } = children;
  const long = { timeoutSecs: 600 };
  await sh(box, 'head -c 4194304 /dev/urandom > /dev/shm/seed');
  await box.files.write('/root/write', Buffer.from(WRITER));
  await sh(box, 'sh /root/write > /dev/null 2>&1 &');
  const written = async (n: number) =>
    await eventually(
      async () => Number(await sh(box, 'wc -l < /root/sums 2>/dev/null || echo 0')) >= n || undefined,
      300_000,
    );
  await written(20);
  await using first = await branch(box);
  await written(120);
  await using second = await branch(box);
  await using firstChild = await fork(1, { snapshot: first.id });
  await using secondChild = await fork(1, { snapshot: second.id });
  const boxes = [box, firstChild.box, secondChild.box];
  // At once: what is written meanwhile is not what is looked at.
  const early = await sh(firstChild.box, CHECK, long);
  expect(early).toMatch(/^\d+$/);
  expect(Number(early)).toBeGreaterThanOrEqual(20);
  const finished = 'until [ -e /root/done ]; do sleep 1; done; wc -c < /root/file';
  for (const each of boxes) {
    expect(await sh(each, finished, long)).toBe(String(BLOCKS * 4 * 2 ** 20));
    expect(await sh(each, `${CHECK}; ${NO_ERRORS}`, long)).toBe(`${BLOCKS}\n0`);
  }
  const sums = await Promise.all(boxes.map((each) => sh(each, 'md5sum < /root/sums')));
  expect(new Set(sums).size).toBe(1);
});
