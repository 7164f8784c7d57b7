import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { branch, drop, dropAllOf, inChild } from '../branch/support.js';
import { client, failureOf, fork, sh } from '../sandbox/support.js';
import { forkd } from '../support/cli.js';
import { sharedHome } from '../support/home.js';
import { childrenOf, parentOf } from '../support/processes.js';
import { eventually } from '../support/wait.js';
import { faultHome, isRoot } from './home.js';
import { Between } from './monitor.js';

const MiB = 1024 * 1024;

describe('branches of one source', () => {
  it('taken three times, with writes to disk between, then resumed: each has its own instant', async () => {
    await using children = await fork();
    const { box } = children;
    const ids: string[] = [];
    for (const step of ['one', 'two', 'three']) {
      await sh(
        box,
        `echo ${step} > /root/step && sync && echo ${step} > /dev/shm/step && echo ${step} >> /root/all`,
      );
      ids.push((await box.branch()).id);
    }
    await sh(box, 'echo on >> /root/all; sync');
    const look =
      'cat /root/step /dev/shm/step | xargs; cat /root/all | xargs; dmesg | grep -ci "ext4.*error" || true';
    const seen = [];
    for (const id of ids) seen.push(await inChild(id, look));
    expect(seen).toEqual(['one one\none\n0', 'two two\none two\n0', 'three three\none two three\n0']);
    expect(await sh(box, look)).toBe('three three\none two three on\n0');
    await children[Symbol.asyncDispose]();
    await dropAllOf(box.id);
  });

  it('go on from the last good one when the link before was removed, or could not be written', async () => {
    await using children = await fork();
    const { box } = children;
    await box.files.write('/dev/shm/x', randomBytes(8 * MiB));
    await sh(box, 'md5sum < /dev/shm/x > /dev/shm/sum; echo first > /root/first; sync');
    const first = await box.branch({ wait: false });
    // Removed at once: refused while it is written, else gone.
    const removal = await client()
      .snapshots.remove(first.id)
      .then(
        () => 'removed',
        (error: { code: string }) => error.code,
      );
    expect(['removed', 'snapshot_in_use', 'snapshot_not_ready']).toContain(removal);
    await using second = await branch(box);
    const look = 'md5sum < /dev/shm/x | diff - /dev/shm/sum && cat /root/first';
    expect(await inChild(second.id, look)).toBe('first');
    await children[Symbol.asyncDispose]();
    if (removal !== 'removed') await drop(first.id);
  });
});

describe('a branch of a branch of a branch', () => {
  it('has all that came before it, and runs when those between have lost their tags and sources', async () => {
    const ids: string[] = [];
    let from = 'busybox';
    for (const step of ['a', 'b', 'c']) {
      await using children = await fork(1, { snapshot: from });
      const zero = step === 'b' ? 'rm /dev/shm/a.bin;' : '';
      await sh(
        children.box,
        `${zero} head -c 2097152 /dev/urandom > /dev/shm/${step}.bin; echo ${step} >> /root/steps; sync`,
      );
      const { id } = await children.box.branch();
      ids.push(id);
      from = id;
    }
    const seen = await inChild(
      from,
      'cat /root/steps | xargs; ls /dev/shm | xargs; dmesg | grep -ci "ext4.*error" || true',
    );
    expect(seen).toBe('a b c\nb.bin c.bin\n0');
    const error = await failureOf(client().snapshots.remove(ids[0] ?? ''));
    expect(error).toMatchObject({ code: 'snapshot_in_use', status: 409 });
    expect(error.message).toContain(ids[1]);
    expect(error.remedy).toContain('--cascade');
    await drop(ids[0] ?? '');
    const left = (await client().snapshots.list()).map(({ id }) => id);
    for (const id of ids) expect(left).not.toContain(id);
  });
});

/** Bytes of the layer that is being written now; undefined when there is none. */
function layerBytes(): number | undefined {
  const snapshots = join(sharedHome(), 'snapshots');
  for (const name of readdirSync(snapshots).filter((one) => one.startsWith('.')))
    try {
      return statSync(join(snapshots, name, 'layer')).size;
    } catch {} // Not yet, or not any more.
  return undefined;
}

/** Stops a shim while it copies a layer of so many bytes, and waits for that without a turn of the event loop. False when it was faster. */
function stoppedAmidCopy(shim: number, bytes: number): boolean {
  const until = performance.now() + 20_000;
  for (let seen = false; performance.now() < until; ) {
    const size = layerBytes();
    if (size === undefined && seen) return false;
    seen ||= size !== undefined;
    if (!size) continue;
    process.kill(shim, 'SIGSTOP');
    while (!/^State:\s+T/m.test(readFileSync(`/proc/${shim}/status`, 'utf8')));
    return (layerBytes() ?? bytes) < bytes;
  }
  return false;
}

describe('the clone that a branch copies from', () => {
  const LAYER = 24 * MiB;
  const look = 'md5sum < /dev/shm/x | diff - /dev/shm/sum && echo same';

  /** A child of which a branch has a layer of that size at least, and what stands between it and its shim. */
  async function source() {
    const children = await fork();
    const { box } = children;
    await box.files.write('/dev/shm/x', randomBytes(LAYER));
    await sh(box, 'md5sum < /dev/shm/x > /dev/shm/sum');
    const { pid } = await box.info();
    if (pid === null) throw new Error('no pid');
    const shim = parentOf(pid);
    const between = await Between.in(join(sharedHome(), 'run', box.id));
    return {
      box,
      between,
      shim,
      /** Frozen images of its memory, now. */
      clones: () => childrenOf(shim).filter((one) => one !== pid),
      /** Ends what is left of a branch, and shows that only that has failed. */
      async failed(id: string) {
        const info = await settled(id);
        expect(info).toMatchObject({ status: 'failed', warning: expect.stringContaining('clone') });
        const error = await failureOf(client().fork({ snapshot: id }));
        expect(error).toMatchObject({ code: 'snapshot_not_ready' });
        const names = readdirSync(join(sharedHome(), 'snapshots'));
        expect(names.filter((name) => name.startsWith('.') || name.includes(id))).toEqual([]);
        await client().snapshots.remove(id);
        expect(await box.info()).toMatchObject({ state: 'running', pid });
        await using again = await branch(box);
        expect(await inChild(again.id, look)).toBe('same');
        expect(await sh(box, look)).toBe('same');
        expect(childrenOf(shim)).toEqual([pid]);
      },
      async [Symbol.asyncDispose]() {
        await children[Symbol.asyncDispose]();
        await between[Symbol.asyncDispose]();
      },
    };
  }

  const settled = (id: string) =>
    eventually(async () => {
      const info = (await client().snapshots.list()).find((one) => one.id === id);
      return info?.status === 'writing' ? undefined : info;
    }, 60_000);

  it('killed before the copy fails that branch only: its source runs on and can be branched', async () => {
    await using one = await source();
    const killed: number[] = [];
    one.between.onStep = (step) => {
      if (step !== 'after cont' || killed.length > 0) return;
      killed.push(...one.clones());
      for (const clone of killed) process.kill(clone, 'SIGKILL');
    };
    const { id, mode } = await one.box.branch({ wait: false });
    expect({ mode, killed: killed.length }).toEqual({ mode: 'live', killed: 1 });
    await one.failed(id);
  });

  it('killed amid the copy fails that branch only; a copy that was through is whole', async () => {
    await using one = await source();
    let amid = false;
    for (let round = 0; round < 10 && !amid; round++) {
      const hunted = new Promise<number>((resolve) => {
        one.between.onStep = (step) => {
          if (step !== 'after cont') return;
          one.between.onStep = () => {};
          // The shim hears of that first.
          setImmediate(() => {
            amid = stoppedAmidCopy(one.shim, LAYER);
            const clones = one.clones();
            for (const clone of amid ? clones : []) process.kill(clone, 'SIGKILL');
            process.kill(one.shim, 'SIGCONT');
            resolve(clones.length);
          });
        };
      });
      const { id } = await one.box.branch({ wait: false });
      const clones = await hunted;
      if (amid) {
        expect(clones).toBe(1);
        await one.failed(id);
      } else {
        expect(await settled(id)).toMatchObject({ status: 'ready' });
        expect(await inChild(id, look)).toBe('same');
        await drop(id);
        // Else the next has nothing to copy.
        await one.box.files.write('/dev/shm/x', randomBytes(LAYER));
        await sh(one.box, 'md5sum < /dev/shm/x > /dev/shm/sum');
      }
    }
    expect(amid).toBe(true);
  });
});

describe.runIf(isRoot)('a daemon that may not suspend a seccomp filter', () => {
  it('branches in mode diff, and says why', async () => {
    const without = ['setpriv', '--bounding-set=-sys_admin', '--inh-caps=-sys_admin'];
    await using home = await faultHome({ wrap: without });
    await using children = await fork(1, {}, home.client);
    const { box } = children;
    await box.files.write('/dev/shm/x', randomBytes(4 * MiB));
    await sh(box, 'md5sum < /dev/shm/x > /dev/shm/sum; echo kept > /root/kept; sync');
    const info = await box.branch({ tag: 'without' });
    expect(info).toMatchObject({ mode: 'diff', status: 'ready' });
    expect(info.mode_reason).toContain('CAP_SYS_ADMIN');
    const look = 'md5sum < /dev/shm/x | diff - /dev/shm/sum && cat /root/kept';
    expect(await inChild('without', look, home.client)).toBe('kept');
    expect(await sh(box, look)).toBe('kept');
    const told = await forkd(['doctor'], { env: { FORKD_HOME: home.path }, wrap: without });
    expect(`${told.stdout}${told.stderr}`).toContain('CAP_SYS_ADMIN');
    await children[Symbol.asyncDispose]();
    await home.client.snapshots.remove(info.id);
  });
});
