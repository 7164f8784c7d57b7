import { defineConfig } from 'vitest/config';

/**
 * Tests over microVMs: each boots or forks machines, so few of them run at once. Many bound the time of something; on a host that others
 * load as well, one that fails is tried once more, and the runner says so.
 */
const overMachines = {
  testTimeout: 60_000,
  hookTimeout: 60_000,
  teardownTimeout: 60_000,
  maxWorkers: 2,
  retry: 1,
  globalSetup: ['test/support/global-setup.ts'],
  setupFiles: ['test/support/env.ts'],
};

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: 'unit',
          include: [
            'packages/*/src/**/*.test.ts',
            'bench/**/*.test.ts',
            'scripts/**/*.test.mjs',
            'test/rig/**/*.test.mjs',
            'test/parity/run.test.ts',
          ],
          testTimeout: 20_000,
          sequence: { groupOrder: 0 },
        },
      },
      {
        // The agent as a program of the host: no machines.
        test: {
          name: 'agent',
          include: ['test/agent-cut/**/*.test.ts'],
          testTimeout: 300_000,
          maxWorkers: 1,
          sequence: { groupOrder: 6 },
        },
      },
      {
        test: {
          name: 'vm',
          include: ['test/**/*.test.ts'],
          exclude: ['test/{agent-cut,python,node,faults,fuzz,parity,soak,leftovers}/**'],
          ...overMachines,
          sequence: { groupOrder: 1 },
        },
      },
      {
        // Builds the python template first, which takes minutes; then what has a Debian with Node.js.
        test: {
          name: 'python',
          include: ['test/{python,node}/**/*.test.ts'],
          ...overMachines,
          globalSetup: ['test/python/global-setup.ts'],
          sequence: { groupOrder: 2 },
        },
      },
      {
        // After all others: what they left behind.
        test: {
          name: 'leftovers',
          include: ['test/leftovers/**/*.test.ts'],
          ...overMachines,
          maxWorkers: 1,
          sequence: { groupOrder: 3 },
        },
      },
      {
        test: {
          name: 'parity',
          include: ['test/parity/parity.test.ts'],
          ...overMachines,
          sequence: { groupOrder: 7 },
        },
      },
      {
        test: {
          name: 'faults',
          include: ['test/faults/**/*.test.ts'],
          ...overMachines,
          testTimeout: 180_000,
          hookTimeout: 120_000,
          maxWorkers: 1,
          sequence: { groupOrder: 4 },
        },
      },
      {
        test: {
          name: 'fuzz',
          include: ['test/fuzz/**/*.test.ts'],
          testTimeout: 300_000,
          sequence: { groupOrder: 5 },
        },
      },
    ],
  },
});
