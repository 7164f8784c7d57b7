import type { Scenario } from '../types.js';
import { branchFaults } from './branch-faults.js';
import { branches } from './branches.js';
import { faults } from './faults.js';
import { forks } from './fork.js';
import { sessions } from './sessions.js';
import { states } from './states.js';
import { wide } from './wide.js';
import { work } from './work.js';

/** Said by whoever made that disk, such as the rig. */
const ownDisk = process.env.FORKD_TEST_OWN_DISK === '1';

/** All behaviours that can be shown here, in the order in which they are shown. */
export const scenarios: readonly Scenario[] = [
  ...forks,
  ...work,
  ...states,
  ...branches,
  ...sessions,
  ...wide,
  ...faults,
  ...branchFaults,
].filter(({ needs }) => needs === undefined || ownDisk);
