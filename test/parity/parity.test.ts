/** The same behaviours as tests of the runner, on what FORKD_TEST_ENGINE and FORKD_TEST_ACCELERATOR name: qemu and tcg by default. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, it } from 'vitest';
import { scenarios } from './scenarios/index.js';
import { openStage } from './stage.js';

const engine = process.env.FORKD_TEST_ENGINE ?? 'qemu';
const accelerator = process.env.FORKD_TEST_ACCELERATOR ?? 'tcg';
const checkout = fileURLToPath(new URL('../..', import.meta.url));

describe(`${engine}+${accelerator}`, () => {
  let stage: Awaited<ReturnType<typeof openStage>>;
  beforeAll(async () => {
    stage = await openStage({ checkout, engine, accelerator, say: console.log });
  }, 300_000);
  afterAll(async () => {
    await stage?.[Symbol.asyncDispose]();
  });
  for (const scenario of scenarios)
    it(`${scenario.area}: ${scenario.name}`, async () => {
      await scenario.run(stage);
    }, 120_000);
});
