import { expect, it } from 'vitest';
import { eventLine, eventOf, keyOf } from '../parity/events.ts';
import { Ledger } from '../parity/ledger.ts';
import { resultOf } from '../parity/table.ts';
import { REBOOTS, runRounds } from './rounds.mjs';

const behaviours = ['one', 'two', 'three'].map((name) => ({ area: 'fork', name }));
const titles = ['qemu+kvm', 'firecracker+kvm'];

/** A suite that says what the real one does, in a machine that crashes at the steps that `crashAt` names, each as often as it is named. */
async function run({ crashAt = [], failing = [], boots = () => true } = {}) {
  const ledger = new Ledger(titles);
  const ran = [];
  const crashes = [...crashAt];
  const crash = { crash: 'its kernel crashed: BUG', log: '/log' };
  const crashesHere = (step) => {
    const at = crashes.indexOf(step);
    if (at !== -1) crashes.splice(at, 1);
    return at !== -1;
  };
  const tell = (event) => ledger.take(eventOf(eventLine(event)));
  const told = await runRounds({
    ledger,
    say: () => {},
    round: async (left) => {
      if (!boots()) return crash;
      tell({ type: 'chosen', behaviours });
      for (const title of left.titles) {
        if (crashesHere(title)) return crash;
        tell({ type: 'column', title, engine: title.split('+')[0], version: '1', slowness: 2 });
        for (const behaviour of behaviours) {
          const key = keyOf(title, behaviour);
          if (left.except.includes(key)) continue;
          tell({ type: 'begin', title, behaviour });
          ran.push(key);
          if (crashesHere(key)) return crash;
          const state = failing.includes(key) ? 'fail' : 'pass';
          tell({ type: 'end', title, result: { scenario: behaviour, state, ms: 1 } });
        }
      }
      return { crash: null, log: '/log' };
    },
  });
  const states = ledger.columns.map((column) =>
    behaviours.map((behaviour) => resultOf(column, behaviour)?.state ?? 'not run'),
  );
  return { states, ran, crashes: told.length, columns: ledger.columns };
}

const all = (state) => [behaviours.map(() => state), behaviours.map(() => state)];

it('a machine that holds is booted once', async () => {
  expect(await run()).toMatchObject({ states: all('pass'), crashes: 0 });
});

it('after a crash all that was not judged is run, and nothing twice but what ran then', async () => {
  const { states, ran, crashes } = await run({ crashAt: ['qemu+kvm: fork: two'] });
  expect(states).toEqual(all('pass'));
  expect(crashes).toBe(1);
  expect(ran.filter((key) => key === 'qemu+kvm: fork: two')).toHaveLength(2);
  expect(new Set(ran).size).toBe(ran.length - 1);
});

it('a crash between behaviours judges none of them', async () => {
  const { states, crashes } = await run({ crashAt: ['firecracker+kvm', 'firecracker+kvm'] });
  expect(states).toEqual(all('pass'));
  expect(crashes).toBe(2);
});

it('a behaviour that ran at two crashes has failed, and the others are run all the same', async () => {
  const key = 'qemu+kvm: fork: two';
  const { states, columns } = await run({ crashAt: [key, key] });
  expect(states).toEqual([
    ['pass', 'fail', 'pass'],
    ['pass', 'pass', 'pass'],
  ]);
  expect(columns[0]?.results[1]?.error).toContain('the machine crashed 2 times while it ran');
});

it('what has failed stays failed after a crash', async () => {
  const failing = ['qemu+kvm: fork: one'];
  const { states, ran } = await run({ failing, crashAt: ['qemu+kvm: fork: two'] });
  expect(states[0]).toEqual(['fail', 'pass', 'pass']);
  expect(ran.filter((key) => failing.includes(key))).toHaveLength(1);
});

it('machines are booted anew a few times only; what did not run is told as that', async () => {
  let boots = 0;
  const { states, crashes } = await run({
    boots: () => {
      boots += 1;
      return false;
    },
  });
  expect(boots).toBe(1 + REBOOTS);
  expect(crashes).toBe(1 + REBOOTS);
  expect(states).toEqual(all('not run'));
});

it('a line that was cut off in a crash is no event', () => {
  const line = eventLine({ type: 'begin', title: 'qemu+kvm', behaviour: behaviours[0] });
  expect(eventOf(line.slice(0, -4))).toBeNull();
  expect(eventOf('[ 3 s] qemu+kvm: pass')).toBeNull();
});
