import { randomBytes } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { client, failureOf, fork, sh } from '../sandbox/support.js';
import { branch, drop, dropAllOf, inChild } from './support.js';

/** A tag that nobody else uses. */
const newTag = () => `branch-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;

describe('a branch to a tag', () => {
  it('that exists is refused, and the source is not touched', async () => {
    await using children = await fork();
    expect(await failureOf(children.box.branch({ tag: 'busybox' }))).toMatchObject({
      code: 'tag_exists',
      status: 409,
    });
    expect(await children.box.info()).toMatchObject({ state: 'running', has_branched: false });
  });

  it('that two ask for at once is given to one', async () => {
    await using children = await fork(2);
    const tag = newTag();
    const results = await Promise.allSettled(children.boxes.map((box) => box.branch({ tag })));
    const done = results.filter((result) => result.status === 'fulfilled');
    expect(done).toHaveLength(1);
    expect(results.find((result) => result.status === 'rejected')).toMatchObject({
      reason: { code: 'tag_exists' },
    });
    await drop(tag);
  });
});

describe('a branch that is not waited for', () => {
  it('is answered when its source runs again, and can be forked when it is ready', async () => {
    await using children = await fork();
    const tag = newTag();
    await children.box.files.write('/dev/shm/x', randomBytes(16 * 1024 * 1024));
    await sh(children.box, 'echo kept > /root/kept; sync');
    const started = await children.box.branch({ tag, wait: false });
    expect(started).toMatchObject({ status: 'writing', tag, bootable: false });
    expect(started.pause_ms).toBeGreaterThan(0);
    expect(await failureOf(children.box.branch({ tag }))).toMatchObject({ code: 'tag_exists' });
    // A second branch of the same source is written after the first.
    const second = await children.box.branch();
    expect(await client().snapshots.get(tag)).toMatchObject({ id: started.id, status: 'ready' });
    expect(await inChild(tag, 'cat /root/kept')).toBe('kept');
    await drop(second.id);
    await drop(tag);
  });

  it('is written to its end when its source is removed right after', async () => {
    await using children = await fork();
    await children.box.files.write('/dev/shm/x', randomBytes(16 * 1024 * 1024));
    await sh(children.box, 'md5sum < /dev/shm/x > /root/sum; sync');
    const { id } = await children.box.branch({ wait: false });
    await children.box.kill();
    expect(await inChild(id, 'md5sum < /dev/shm/x | diff - /root/sum && echo same')).toBe('same');
    await drop(id);
  });
});

describe('branches', () => {
  it('of one source at once come one after the other, each of its own instant', async () => {
    await using children = await fork();
    await sh(children.box, 'echo same > /dev/shm/x');
    const both = await Promise.all([children.box.branch(), children.box.branch()]);
    expect(await Promise.all(both.map(({ id }) => inChild(id, 'cat /dev/shm/x')))).toEqual(['same', 'same']);
    for (const { id } of both) await drop(id);
  });

  it('of a sandbox that is being removed are refused, or complete', async () => {
    await using children = await fork();
    const { box } = children;
    const removal = box.kill();
    const result = await box.branch().then(
      (info) => info,
      (error: { code: string }) => error.code,
    );
    await removal;
    if (typeof result === 'string') expect(['sandbox_not_running', 'sandbox_not_found']).toContain(result);
    else await drop(result.id);
    const left = (await client().snapshots.list()).filter(({ branched_from }) => branched_from === box.id);
    expect(left).toEqual([]);
  });

  it('after one whose snapshot was removed have all that it had', async () => {
    await using children = await fork();
    const { box } = children;
    await sh(box, 'echo first > /root/first && sync && echo first > /dev/shm/first');
    await drop((await box.branch()).id);
    await sh(box, 'echo second > /root/second && sync');
    await using later = await branch(box);
    const seen = await inChild(
      later.id,
      'cat /root/first /root/second /dev/shm/first | xargs; dmesg | grep -ci "ext4.*error" || true',
    );
    expect(seen).toBe('first second first\n0');
  });

  it('beyond what the host takes at once are refused with the time to try again', async () => {
    await using children = await fork(1);
    const all = await Promise.allSettled(Array.from({ length: 12 }, () => children.box.branch()));
    const refused = all.filter((result) => result.status === 'rejected');
    expect(refused.length).toBeGreaterThan(0);
    for (const { reason } of refused) expect(reason).toMatchObject({ code: 'busy', status: 503 });
    await children[Symbol.asyncDispose]();
    await dropAllOf(children.box.id);
  });

  it('start children in the same call', async () => {
    await using children = await fork();
    await sh(children.box, 'echo here > /dev/shm/x');
    const { snapshot, sandboxes, failures } = await children.box.fork(3);
    expect(failures).toEqual([]);
    const seen = await Promise.all(sandboxes.map((box) => sh(box, 'cat /dev/shm/x; hostname')));
    expect(seen).toEqual(sandboxes.map(({ id }) => `here\n${id}`));
    await Promise.all(sandboxes.map((box) => box.kill()));
    await drop(snapshot.id);
  });

  it('in mode diff say so', async () => {
    await using children = await fork();
    await sh(children.box, 'echo d > /dev/shm/x');
    await using half = await branch(children.box, { mode: 'diff' });
    expect(half.info.mode).toBe('diff');
    expect(await inChild(half.id, 'cat /dev/shm/x')).toBe('d');
  });
});
