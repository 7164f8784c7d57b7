import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { ForkdError, type Sandbox } from '@forkd/sdk';
import { expect, it } from 'vitest';
import { dropAllOf } from '../branch/support.js';
import { fork, sh } from '../sandbox/support.js';
import { parentOf } from '../support/processes.js';
import { eventually } from '../support/wait.js';
import { faultHome } from './home.js';

/** Run again what failed: FORKD_FAULTS_SEED=N. */
const seed = Number(process.env.FORKD_FAULTS_SEED ?? Math.floor(Math.random() * 2 ** 31));

const KILLS = 12;

/** What a client may be told while things are killed under it. A defect, or an error without a reason, is none of these. */
const expected = new Set([
  'busy',
  'connection_lost',
  'daemon_unreachable',
  'guest_unreachable',
  'sandbox_exited',
  'sandbox_not_found',
  'sandbox_not_running',
  'shutting_down',
  'snapshot_not_ready',
  'vmm_failed',
  'fork_failed',
  'cancelled',
]);

/** Numbers from 0 to 1 that follow from the seed (mulberry32). */
function random(from: number): () => number {
  let state = from >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

it(`daemon, shims and VMMs killed at random under load (seed ${seed}): the others run on, each end has its reason`, async () => {
  console.log(`FORKD_FAULTS_SEED=${seed}`);
  const next = random(seed);
  await using home = await faultHome();
  const { client } = home;
  await using kept = await fork(4, {}, client);
  for (const box of kept.boxes) await sh(box, 'echo kept > /root/kept; sync; echo $$ > /dev/shm/mine');
  const told: string[] = [];
  let over = false;
  /** Does one thing after the other, whatever happens; failures are kept. */
  const load = async (act: (turn: number) => Promise<unknown>) => {
    for (let turn = 0; !over; turn++) {
      await act(turn).catch((error: unknown) => {
        if (!(error instanceof ForkdError)) throw error;
        told.push(error.code);
        return new Promise((resolve) => setTimeout(resolve, 100)); // The daemon may be away for a while.
      });
    }
  };
  const pick = <T>(all: readonly T[]): T => all[Math.floor(next() * all.length)] as T;
  const loads = [
    load((turn) =>
      sh(kept.boxes[turn % 4] as Sandbox, 'echo x >> /root/log; cat /root/kept').then((text) =>
        expect(text).toBe('kept'),
      ),
    ),
    load(async () => {
      const { sandboxes } = await client.fork({ snapshot: 'busybox', n: 2 });
      for (const box of sandboxes) await box.kill();
    }),
    load((turn) => (kept.boxes[turn % 2] as Sandbox).branch().then(({ id }) => client.snapshots.remove(id))),
  ];
  const dead = new Map<string, string>();
  try {
    for (let kill = 0; kill < KILLS; kill++) {
      await new Promise((resolve) => setTimeout(resolve, next() * 700));
      const victim = pick(['daemon', 'shim', 'VMM', 'shim'] as const);
      if (victim === 'daemon') {
        await home.end('SIGKILL');
        await home.start();
        continue;
      }
      const living = kept.boxes.filter(({ id }) => !dead.has(id));
      // Two are left to show that they live.
      if (victim === 'VMM' && living.length <= 2) continue;
      const box = pick(living);
      const { pid } = await box.info();
      if (pid === null) throw new Error(`${box.id} has no pid`);
      process.kill(victim === 'VMM' ? pid : parentOf(pid), 'SIGKILL');
      if (victim === 'VMM') dead.set(box.id, 'killed');
    }
  } finally {
    over = true;
    await Promise.all(loads);
  }
  expect(told.filter((code) => !expected.has(code))).toEqual([]);
  for (const box of kept.boxes) {
    const info = await eventually(async () => {
      const now = await box.info();
      return dead.has(box.id) === (now.state === 'exited') ? now : undefined;
    });
    // Who saw the end says which signal; a daemon or shim that came later says that nobody did. Never a success.
    if (dead.has(box.id)) expect(['signaled', 'unknown']).toContain(info.exit?.kind);
    else expect(await sh(box, 'cat /root/kept')).toBe('kept');
  }
  // What nobody was told of is not there either.
  const known = new Set((await client.sandboxes.list()).map(({ id }) => id));
  for (const id of known) if (!kept.boxes.some((box) => box.id === id)) await client.sandboxes.remove(id);
  const run = readdirSync(join(home.path, 'run')).filter((name) => name.startsWith('sb-'));
  expect(run.filter((name) => !known.has(name))).toEqual([]);
  for (const box of kept.boxes.slice(0, 2)) await dropAllOf(box.id, client);
});
