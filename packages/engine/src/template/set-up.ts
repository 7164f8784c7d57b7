/**
 * Files and `setup` of a template: done in a machine of their own, of which the disk stays. What a build goes on with is the same whether they
 * ran just now or long ago.
 */
import { join } from 'node:path';
import { scratchIn } from '../guest/cache.js';
import { copyDisk } from '../guest/disk.js';
import type { BootSpec, BuilderHost } from './builder.js';
import type { HostFile } from './digest.js';
import { runCommand, shown, writeFiles } from './guest-steps.js';
import { greet, stepsIn } from './in-machine.js';
import type { CommandSpec, TemplateSpec } from './schema.js';
import type { SetUpDisks } from './set-up-disks.js';
import type { BuildSteps } from './steps.js';

export interface SetUp {
  home: string;
  disks: SetUpDisks;
  spec: TemplateSpec;
  hostFiles: ReadonlyMap<string, HostFile>;
  /** Of `setUpDigest`. */
  digest: string;
  noCache: boolean;
  /** All but the directory and the disk. */
  boot: Omit<BootSpec, 'workDir' | 'disk'>;
  signal: AbortSignal | undefined;
}

/** Places that are no part of the disk: each boot has them empty. */
const VOLATILE = /^\/(tmp|run|dev|proc|sys)\//;

/** Files that have to be written in the machine that is captured: those that no disk keeps. */
export function volatileFiles(spec: TemplateSpec): TemplateSpec['files'] {
  return spec.files.filter(({ path }) => VOLATILE.test(path));
}

/**
 * Does what is to be done on the disk once, or finds it done.
 *
 * @param emptyDisk what it starts from
 * @returns a disk of the cache: to be copied while the build uses it
 */
export async function setUpDisk(
  steps: BuildSteps,
  host: BuilderHost,
  setUp: SetUp,
  emptyDisk: string,
): Promise<string> {
  const { home, disks, spec, digest, noCache, signal } = setUp;
  const known = noCache ? null : await disks.find(digest, spec.diskBytes);
  if (known !== null) {
    for (const { name, title } of stepsOf(spec))
      await steps.run(name, title, async () => known, { cached: () => true });
    return known;
  }
  await using scratch = await scratchIn(join(home, 'builds'));
  const disk = join(scratch.dir, 'disk');
  await copyDisk(emptyDisk, disk, signal);
  await runSetUp(steps, host, setUp, scratch.dir, disk);
  return await steps.run('keep', 'Keep the disk that was set up', () => disks.keep(digest, disk, signal));
}

/** Boots a machine, does it all in there, and ends it: what is in its memory is lost, by intent. */
async function runSetUp(
  steps: BuildSteps,
  host: BuilderHost,
  { spec, hostFiles, boot, signal: building }: SetUp,
  workDir: string,
  disk: string,
): Promise<void> {
  await using machine = await steps.run(
    'setup-boot',
    'Boot a machine to set up the disk',
    () => host.boot({ ...boot, workDir, disk }),
    { detail: ({ bootMs }) => `${(bootMs / 1000).toFixed(1)} s` },
  );
  const { session } = machine;
  const { signal, step } = stepsIn(steps, machine, building);
  await step('setup-hello', 'Greet that machine', () => greet(machine, spec, signal));
  for (const { name, title, command } of stepsOf(spec))
    await step(name, title, (tell) =>
      command
        ? runCommand(session, command, tell, signal)
        : writeFiles(session, spec.files, hostFiles, signal),
    );
  await step('setup-end', 'Flush its disk', async () => {
    await session.freeze({ interpreters: true, user: true });
    await session.sync();
    await session.close();
  });
}

/** The steps of a setup, in order; the one without a command writes the files. */
function stepsOf(spec: TemplateSpec): { name: string; title: string; command?: CommandSpec }[] {
  const files = spec.files.length > 0 ? [filesStep(spec.files)] : [];
  return [
    ...files,
    ...spec.setup.map((command, index) => ({
      name: `setup-${index + 1}`,
      title: `Set up: ${shown(command.run)}`,
      command,
    })),
  ];
}

export function filesStep(files: TemplateSpec['files']): { name: string; title: string } {
  return { name: 'files', title: `Write ${files.length} files` };
}
