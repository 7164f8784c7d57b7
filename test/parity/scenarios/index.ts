import type { Scenario } from '../types.js';
import { branches } from './branches.js';
import { forks } from './fork.js';
import { states } from './states.js';
import { work } from './work.js';

/** All behaviours, in the order in which they are shown. */
export const scenarios: readonly Scenario[] = [...forks, ...work, ...states, ...branches];
