/** Templates: recipes whose build makes a snapshot. */
export { buildTemplate, type TemplateBuild } from './build.js';
export type { BootSpec, BuildContext, BuilderHost, BuilderMachine, CommitSpec } from './builder.js';
export { parseTemplate } from './parse.js';
export type { CommandSpec, TemplateSpec } from './schema.js';
export { SetUpDisks, setUpDisksIn } from './set-up-disks.js';
