/** Builds a template: from its YAML to a snapshot, or to the word that nothing has changed. */
import { join } from 'node:path';
import { EngineError } from '../errors.js';
import { scratchIn } from '../guest/cache.js';
import { copyDisk, ensureDisk } from '../guest/disk.js';
import { findRootfs } from '../guest/rootfs/rootfs.js';
import { freeBytes } from '../host/disk-space.js';
import type { Manifest } from '../snapshot/manifest.js';
import type { BuildOptions } from '../types.js';
import type { BuildContext, BuilderHost, BuilderMachine, PreparedHost } from './builder.js';
import { type DigestInputs, findHostFiles, hostPath, templateDigest } from './digest.js';
import {
  assertRunning,
  firstCommand,
  type Resident,
  runCommand,
  shown,
  startInterpreter,
  startService,
  waitUntilReady,
  writeFiles,
} from './guest-steps.js';
import { greet, stepsIn } from './in-machine.js';
import { BuildLog } from './log.js';
import { parseTemplate } from './parse.js';
import { lockOf, type Parts, prepareParts } from './parts.js';
import type { TemplateSpec } from './schema.js';
import { filesStep, type SetUp, setUpDisk, volatileFiles } from './set-up.js';
import { setUpDigest } from './set-up-disks.js';
import { BuildSteps } from './steps.js';

const MiB = 1024 * 1024;
/** Room on the state directory's disk beside the machine's memory: its disk's writes, and the disk's own bookkeeping. */
const SPARE_BYTES = 512 * MiB;

export interface TemplateBuild {
  manifest: Manifest;
  /** Nothing had changed: `manifest` is that of `current`. */
  cached: boolean;
  ms: number;
  logFile: string;
}

/**
 * Builds a template.
 *
 * A build leaves a whole snapshot or nothing: it works in a directory of its own, which goes whatever happens. The log stays.
 *
 * @throws EngineError `template_invalid`, `build_failed` {step, output, log}, `build_cancelled`, `host_unfit`, `insufficient_disk`
 */
export async function buildTemplate(
  prepare: (tell: (line: string) => void) => Promise<PreparedHost>,
  context: BuildContext,
  options: BuildOptions,
): Promise<TemplateBuild> {
  const started = performance.now();
  const spec = parseTemplate(options.yaml, options.name);
  const hostFiles = await findHostFiles(spec, options.dir, options.signal);
  const base =
    spec.rootfs === null ? spec.base : await findRootfs(hostPath(spec, spec.rootfs, options.dir, 'rootfs'));
  await using log = await BuildLog.open(context.home, options.name);
  log.line(`template ${options.name}, ${new Date().toISOString()}`);
  const { signal, onProgress } = options;
  const steps = new BuildSteps({ name: options.name, log, signal, onProgress });

  const { host, current } = await steps.run(
    'host',
    'Find out what this host can run',
    ({ line }) => prepare(line),
    { cached: ({ remembered }) => remembered, detail: ({ found }) => found },
  );
  const parts = { ...(await prepareParts(steps, context, spec, base, options)), hostFiles };
  const inputs: DigestInputs = {
    spec,
    files: Object.fromEntries([...hostFiles].map(([path, file]) => [path, file.sha256])),
    kernel: parts.kernel.sha256,
    initramfs: parts.initramfs.sha256,
    image: parts.image.sha256,
    pin: await host.pin(),
  };
  const digest = templateDigest(inputs);
  const done = (manifest: Manifest, cached: boolean): TemplateBuild => ({
    manifest,
    cached,
    ms: performance.now() - started,
    logFile: log.path,
  });
  if (current && current.template.digest === digest && !options.noCache) {
    await steps.run('capture', 'Capture the machine', async () => current, {
      cached: () => true,
      detail: () => current.id,
    });
    return done(current, true);
  }
  const { noCache = false } = options;
  const building = { spec, parts, digest, setUpDigest: setUpDigest(inputs), noCache, started, signal };
  const manifest = await buildMachine(steps, host, context, building);
  context.log?.('info', 'template built', { template: options.name, snapshot: manifest.id });
  return done(manifest, false);
}

interface MachineBuild {
  spec: TemplateSpec;
  parts: Parts;
  digest: string;
  setUpDigest: string;
  noCache: boolean;
  started: number;
  signal: AbortSignal | undefined;
}

async function buildMachine(
  steps: BuildSteps,
  host: BuilderHost,
  context: BuildContext,
  build: MachineBuild,
): Promise<Manifest> {
  const { spec, parts, signal } = build;
  await assertSpace(context.home, spec);
  const empty = await steps.run(
    'disk',
    'Make the disk',
    () => ensureDisk({ home: context.home, bytes: spec.diskBytes, signal }),
    { cached: (result) => result.cached, detail: () => `${spec.diskBytes / MiB} MiB` },
  );
  const boot = {
    memoryBytes: spec.memoryBytes,
    vcpus: spec.vcpus,
    kernel: parts.kernel,
    initrd: parts.initramfs.path,
    image: parts.image.path,
    ...(signal && { signal }),
  };
  await using scratch = await scratchIn(join(context.home, 'builds'));
  const workDir = scratch.dir;
  const disk = join(workDir, 'disk');
  {
    using _use = context.setUpDisks.use(build.setUpDigest);
    await copyDisk(await diskFor(steps, host, context, build, boot, empty.path), disk, signal);
  }
  await using machine = await steps.run(
    'boot',
    'Boot the machine',
    () => host.boot({ ...boot, workDir, disk }),
    { detail: ({ bootMs }) => `${(bootMs / 1000).toFixed(1)} s` },
  );
  const warmStarted = performance.now();
  const interpreters = await warmUp(steps, machine, build);
  const warmMs = performance.now() - warmStarted;
  return await steps.run(
    'capture',
    'Capture the machine',
    async () => {
      await machine.capture();
      const { name, sha256, bytes } = parts.image;
      const { version, sha256: kernelSha256 } = parts.kernel;
      return await host.commit({
        workDir,
        template: {
          name: spec.name,
          digest: build.digest,
          interpreters,
          user: spec.user,
          env: spec.env,
          prime: spec.prime,
        },
        image: { name, sha256, bytes },
        kernel: { version, sha256: kernelSha256 },
        memoryBytes: spec.memoryBytes,
        vcpus: spec.vcpus,
        diskBytes: spec.diskBytes,
        build: () => ({
          ms: performance.now() - build.started,
          bootMs: machine.bootMs,
          warmMs,
          steps: steps.records(),
          ...(spec.setup.length > 0 && { setUp: build.setUpDigest }),
          packages: { pip: lockOf('pip', parts.sets), npm: lockOf('npm', parts.sets) },
        }),
      });
    },
    { detail: ({ id }) => id },
  );
}

/** All that is done in the machine, up to the state that is captured: everything but the agent frozen, its session closed. */
async function warmUp(
  steps: BuildSteps,
  machine: BuilderMachine,
  build: MachineBuild,
): Promise<Manifest['template']['interpreters']> {
  const { spec, parts } = build;
  const { session } = machine;
  const { signal, step } = stepsIn(steps, machine, build.signal);
  const residents: Resident[] = [];
  const interpreters: Manifest['template']['interpreters'] = [];

  await step('hello', 'Greet the machine', () => greet(machine, spec, signal));
  // Where there is a setup, what a disk keeps has been written to it.
  const files = spec.setup.length > 0 ? volatileFiles(spec) : spec.files;
  if (files.length > 0) {
    const { name, title } = filesStep(files);
    await step(name, title, () => writeFiles(session, files, parts.hostFiles, signal));
  }
  for (const item of spec.interpreters)
    await step(`interpreter-${item.name}`, `Warm up ${item.name}`, async (tell) => {
      const resident = await startInterpreter(session, spec, item, tell, signal);
      residents.push(resident);
      interpreters.push({ name: item.name, handle: resident.process.handle });
    });
  for (const [index, command] of spec.warmUp.entries())
    await step(`warm-up-${index + 1}`, `Warm up: ${shown(command.run)}`, async (tell) => {
      if (command.background) residents.push(await startService(session, command, tell, signal));
      else await runCommand(session, command, tell, signal);
    });
  await step('first-command', 'Run a first command', (tell) =>
    firstCommand(session, spec.user, tell, signal),
  );
  const { ready } = spec;
  if (ready)
    await step('ready', `Wait until ready: ${shown(ready.run)}`, (tell) =>
      waitUntilReady(session, ready, residents, tell, signal),
    );
  await step('freeze', 'Freeze the machine', async () => {
    assertRunning(residents);
    for (const { process } of residents) process.detach();
    await session.freeze({ interpreters: true, user: true });
    await session.sync();
    await session.close();
  });
  return interpreters;
}

/** The disk that the machine starts with: empty, or with files and setup done. */
async function diskFor(
  steps: BuildSteps,
  host: BuilderHost,
  { home, setUpDisks: disks }: BuildContext,
  { spec, parts, setUpDigest: digest, noCache, signal }: MachineBuild,
  boot: SetUp['boot'],
  empty: string,
): Promise<string> {
  if (spec.setup.length === 0) return empty;
  const { hostFiles } = parts;
  const setUp = { home, disks, spec, hostFiles, digest, noCache, boot, signal };
  return await setUpDisk(steps, host, setUp, empty);
}

async function assertSpace(home: string, spec: TemplateSpec): Promise<void> {
  const free = await freeBytes(home);
  const needed = spec.memoryBytes + SPARE_BYTES;
  if (free < needed)
    throw new EngineError(
      'insufficient_disk',
      `template ${spec.name} needs ${Math.ceil(needed / MiB)} MiB in ${home}, which has ${Math.floor(free / MiB)} MiB free`,
      { remedy: 'Free space, or set FORKD_HOME to a directory on a larger disk.', details: { needed, free } },
    );
}
