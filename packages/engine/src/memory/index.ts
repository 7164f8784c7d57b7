export * from './extents.js';
export { type FlattenOptions, flattenMemory } from './flatten.js';
export { type GraftExtent, MAX_MAPPINGS, type PlannedGraft, planGraft } from './graft-plan.js';
export { mergeLayers } from './merge.js';
