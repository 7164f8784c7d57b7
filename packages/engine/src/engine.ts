import { mkdir, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { deadline } from './deadline.js';
import { EngineError } from './errors.js';
import { forkChildren } from './fork/fork.js';
import { type ChildHost, type ChildSource, STANDBY_PREFIX } from './fork/waiting.js';
import { sweepScratch } from './guest/cache.js';
import { checkHost } from './host/checks.js';
import { chooseEngine, type EngineChoice, type Wanted, wantedByEnvironment } from './host/choice.js';
import { hostPin } from './host/pin.js';
import { proveCandidate } from './host/proof.js';
import { vmmUser } from './host/user.js';
import { type Candidate, obstacle, type Prove, verdictOn } from './host/verdict.js';
import { isId } from './ids.js';
import { adoptMachine, sweepSandbox } from './machine/adopt.js';
import { probeAbilities, type ShimAbilities } from './shim/index.js';
import {
  type Chain,
  freedBytes,
  incompatibility,
  type Manifest,
  SnapshotStore,
  snapshotSizes,
  verifySnapshot,
} from './snapshot/index.js';
import { Standby } from './standby/standby.js';
import { builderHost } from './template/builder-host.js';
import { buildTemplate, parseTemplate, SetUpDisks, setUpDisksIn } from './template/index.js';
import {
  type BuildOptions,
  type BuildResult,
  defaultStandby,
  type Engine,
  type EngineName,
  type EngineOptions,
  type ForkRequest,
  type ForkResult,
  type HostCheck,
  type LogFunction,
  type Machine,
  type SnapshotSizes,
  type StandbyReport,
} from './types.js';
import { driverOf } from './vmm/drivers.js';

/** Directories of the state directory that the engine owns. */
const directories = ['run', 'cache', 'cache/images', 'builds', 'templates'] as const;

/** Where builds keep what is half made. */
const scratchParents = [
  'builds',
  'cache/kernel',
  'cache/images',
  'cache/initramfs',
  'cache/disks',
  'cache/debs',
  'cache/pip',
  'cache/npm',
  setUpDisksIn,
] as const;

/**
 * Opens the engine on a state directory. One process at a time may; the daemon's lock sees to that.
 *
 * @throws EngineError home_unusable when the directory cannot be made or written
 */
export async function openEngine(options: EngineOptions): Promise<Engine> {
  const engine = new LocalEngine(options);
  await engine.open();
  return engine;
}

/** What children of a snapshot are made from, and the snapshots whose files that names. */
interface KnownSource {
  source: ChildSource;
  links: readonly string[];
}

class LocalEngine implements Engine {
  readonly home: string;
  readonly #log: LogFunction;
  readonly #nativeDir: string;
  readonly #shimBinary: string;
  readonly #store: SnapshotStore;
  readonly #sources = new Map<string, Promise<KnownSource>>();
  readonly #standby: Standby;
  readonly #setUpDisks: SetUpDisks;
  #abilities: Promise<ShimAbilities> | undefined;
  readonly #engine: EngineName | undefined;
  /** By the engine that is wanted. */
  /** Candidates that are known to work, by name. */
  readonly #proven = new Set<string>();
  readonly #choices = new Map<string, Promise<EngineChoice>>();

  constructor(options: EngineOptions) {
    this.home = options.home;
    this.#log = options.log ?? (() => {});
    this.#nativeDir = options.nativeDir;
    this.#shimBinary = join(options.nativeDir, 'forkd-shim');
    this.#store = new SnapshotStore(options.home);
    this.#setUpDisks = new SetUpDisks(options.home);
    this.#engine = options.engine;
    this.#standby = new Standby(options.standby ?? defaultStandby, this.#log);
    // Sources name files; those of it and of all that stand on it are others now.
    this.#store.onFlattened(() => this.#sources.clear());
  }

  async open(): Promise<void> {
    try {
      await mkdir(this.home, { recursive: true, mode: 0o700 });
      for (const name of directories) await mkdir(join(this.home, name), { recursive: true, mode: 0o700 });
      await this.#store.open();
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new EngineError(
        'home_unusable',
        `the state directory ${this.home} cannot be used: ${code ?? error}`,
        {
          remedy: 'Make it writable for this user, or set FORKD_HOME to another directory.',
          cause: error,
        },
      );
    }
  }

  async checkHost(options: { prove?: boolean; signal?: AbortSignal } = {}): Promise<HostCheck[]> {
    const { prove, signal } = options;
    if (prove) this.#choices.clear();
    return await checkHost({
      home: this.home,
      shimBinary: this.#shimBinary,
      abilities: () => this.#probe(),
      choice: () => this.#choose(undefined, signal),
      prove: prove ? (candidate, proving) => this.#prove(candidate, proving) : undefined,
      signal,
    });
  }

  async choice(signal?: AbortSignal): ReturnType<Engine['choice']> {
    return await this.#choose(undefined, signal);
  }

  async parseTemplate(yaml: string, name: string): Promise<unknown> {
    return parseTemplate(yaml, name);
  }

  async buildTemplate(options: BuildOptions & { current?: string }): Promise<BuildResult> {
    const { current, engine, ...rest } = options;
    const prepare = async (tell: (line: string) => void) => {
      const remembered = this.#isChosen(engine);
      const [abilities, choice] = await Promise.all([
        this.#probe(),
        this.#choose(engine, options.signal, tell),
      ]);
      const { accelerator, reason } = choice;
      const host = builderHost({
        driver: driverOf(choice.engine),
        store: this.#store,
        shimBinary: this.#shimBinary,
        abilities,
        accelerator,
      });
      const known = current === undefined ? null : await this.#usable(current);
      return { host, current: known, found: `${choice.engine} on ${accelerator}: ${reason}`, remembered };
    };
    const { home } = this;
    const context = { home, nativeDir: this.#nativeDir, setUpDisks: this.#setUpDisks, log: this.#log };
    const result = await buildTemplate(prepare, context, rest);
    const { manifest, cached, ms, logFile } = result;
    this.#standby.expect(await this.#source(manifest), await this.#childHost(manifest));
    return { snapshotId: manifest.id, manifest, cached, ms, logFile };
  }

  async listSnapshots(): Promise<string[]> {
    return await this.#store.list();
  }

  async readManifest(snapshotId: string): Promise<Manifest> {
    return await this.#store.manifest(snapshotId);
  }

  snapshotDirectory(snapshotId: string): string {
    return this.#store.directory(snapshotId);
  }

  async snapshotSizes(snapshotId: string): Promise<SnapshotSizes> {
    return await snapshotSizes(this.#store.directory(snapshotId), await this.#store.manifest(snapshotId));
  }

  async incompatibility(manifest: Manifest): Promise<string | null> {
    const { engine, accelerator } = manifest.machine;
    const driver = driverOf(engine);
    const problem = await this.#cannotRun({ engine, accelerator });
    if (problem !== null) {
      const here = await this.#choose().catch(() => null);
      const has = here ? `${here.engine} on ${here.accelerator}` : 'none that works';
      return `it was made with ${engine} on ${accelerator}, this host has ${has}: ${problem}`;
    }
    return incompatibility(manifest.machine, {
      ...manifest.machine,
      ...(await hostPin(driver, accelerator, this.#shimBinary)),
    });
  }

  async verifySnapshot(
    snapshotId: string,
    signal?: AbortSignal,
  ): Promise<{ problems: string[]; bytesRead: number }> {
    return await verifySnapshot(
      this.#store.directory(snapshotId),
      await this.#store.manifest(snapshotId),
      signal,
    );
  }

  async flattenSnapshot(snapshotId: string): Promise<Manifest> {
    return await this.#store.flatten(snapshotId);
  }

  onFlattened(listener: (manifest: Manifest) => void): void {
    this.#store.onFlattened(listener);
  }

  async removeSnapshot(snapshotId: string): Promise<void> {
    this.#sources.delete(snapshotId);
    await this.#standby.drop(snapshotId);
    await this.#store.remove(snapshotId);
  }

  async freedBytes(snapshotIds: readonly string[]): Promise<number> {
    return await freedBytes(snapshotIds.map((id) => this.#store.directory(id)));
  }

  async collectSetUps(
    needed: ReadonlySet<string>,
    dryRun: boolean,
  ): Promise<{ disks: number; bytes: number }> {
    let disks = 0;
    let bytes = 0;
    for (const disk of await this.#setUpDisks.unused(needed)) {
      if (!dryRun && !(await this.#setUpDisks.remove(disk.digest))) continue;
      disks += 1;
      bytes += disk.bytes;
    }
    return { disks, bytes };
  }

  async durable(snapshotId: string): Promise<void> {
    try {
      await this.#store.durable(snapshotId);
    } catch (error) {
      // It has failed: nobody forks from what is remembered of it.
      this.#sources.clear();
      throw error;
    }
  }

  isDurable(snapshotId: string): boolean {
    return this.#store.isDurable(snapshotId);
  }

  async fork(request: ForkRequest): Promise<ForkResult[]> {
    // Its files stay where they are until all children have them.
    const { source, pin } = await this.#pinned(request.snapshotId);
    using _pin = pin;
    const { manifest } = source;
    // Each is a few looks at files: one after the other they would be a good part of a primed fork.
    const finding = this.#childHost(manifest);
    finding.catch(() => {}); // Where its engine is missing, the incompatibility says so, and more.
    const [problem] = await Promise.all([this.incompatibility(manifest), this.#store.inspect(manifest)]);
    if (problem)
      throw new EngineError(
        'snapshot_incompatible',
        `snapshot ${manifest.id} cannot run on this host: ${problem}`,
        {
          remedy: `Build its template again on this host: forkd template build ${manifest.template.name}`,
        },
      );
    const host = await finding;
    const mapped = host.abilities.injection || host.abilities.attach;
    const copied = mapped ? source.copiedBytes : (await this.snapshotSizes(manifest.id)).memoryPhysical;
    return await forkChildren(source, host, request, this.#standby, copied);
  }

  standbyReport(): StandbyReport {
    return this.#standby.report();
  }

  async listRunDirectories(): Promise<string[]> {
    return (await readdir(join(this.home, 'run'))).filter((name) => isId('sb', name)).sort();
  }

  async adopt(sandboxId: string): Promise<Machine> {
    using limit = deadline(`the adoption of ${sandboxId}`, 15_000);
    return await adoptMachine(
      { dir: this.#runDirectory(sandboxId), id: sandboxId, shimBinary: this.#shimBinary, log: this.#log },
      this.#store,
      limit.signal,
    );
  }

  async sweep(sandboxId: string): Promise<void> {
    await sweepSandbox(this.#runDirectory(sandboxId), this.#shimBinary);
  }

  async sweepLeftovers(): Promise<string[]> {
    const root = join(this.home, 'run');
    const standby = (await readdir(root)).filter((name) => name.startsWith(STANDBY_PREFIX));
    await Promise.all(standby.map((name) => sweepSandbox(join(root, name), this.#shimBinary)));
    const scratch = await Promise.all(scratchParents.map((name) => sweepScratch(join(this.home, name))));
    const left = [...standby, ...scratch.flat(), ...(await this.#store.sweep())];
    await this.#recoverSnapshots();
    return left;
  }

  async #recoverSnapshots(): Promise<void> {
    const { verified, failed } = await this.#store.recover();
    for (const id of verified)
      this.#log(
        'info',
        `snapshot ${id} had not been synced when the host went down: it was read and is whole`,
      );
    for (const { id, problem } of failed) this.#log('error', `snapshot ${id} has failed: ${problem}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#standby[Symbol.asyncDispose]();
    await this.#store.settled();
    this.#sources.clear();
  }

  #runDirectory(sandboxId: string): string {
    if (!isId('sb', sandboxId))
      throw new EngineError('sandbox_not_found', `there is no sandbox ${JSON.stringify(sandboxId)}`);
    return join(this.home, 'run', sandboxId);
  }

  /** What the shim may do on this host; asked once. */
  #probe(): Promise<ShimAbilities> {
    if (this.#abilities) return this.#abilities;
    const probing = probeAbilities(this.#shimBinary);
    this.#abilities = probing;
    probing.catch(() => {
      this.#abilities = undefined;
    });
    return probing;
  }

  /** What runs a build; decided once per process, proven once per boot of the host. */
  #choose(engine?: EngineName, signal?: AbortSignal, tell?: (line: string) => void): Promise<EngineChoice> {
    const wanted = this.#wanted(engine);
    const key = JSON.stringify(wanted);
    const known = this.#choices.get(key);
    if (known) return known;
    const prove: Prove = (candidate, proofSignal) => this.#prove(candidate, proofSignal, tell);
    const choosing = chooseEngine(this.home, wanted, prove, signal);
    this.#choices.set(key, choosing);
    choosing.catch(() => this.#choices.delete(key));
    return choosing;
  }

  #isChosen(engine?: EngineName): boolean {
    return this.#choices.has(JSON.stringify(this.#wanted(engine)));
  }

  #wanted(engine?: EngineName): Wanted {
    return {
      ...wantedByEnvironment(),
      ...(this.#engine && { engine: this.#engine }),
      ...(engine && { engine }),
    };
  }

  async #prove(
    candidate: Candidate,
    signal?: AbortSignal,
    onProgress?: (line: string) => void,
  ): Promise<void> {
    const abilities = await this.#probe();
    const { home } = this;
    await proveCandidate(candidate, { home, nativeDir: this.#nativeDir, abilities, signal, onProgress });
  }

  /** Why this host cannot run what was made with an engine and an accelerator; null when it can. tcg needs no proof. */
  async #cannotRun(candidate: Candidate): Promise<string | null> {
    const key = `${candidate.engine} on ${candidate.accelerator}`;
    if (this.#proven.has(key)) return null;
    const problem = await obstacle(candidate);
    if (problem !== null || candidate.accelerator === 'tcg') return problem?.reason ?? null;
    const { works, reason } = await verdictOn(this.home, candidate, (one) => this.#prove(one));
    if (works) this.#proven.add(key);
    return works ? null : reason;
  }

  /** The manifest of a snapshot that could be kept by a build; null when it is gone, damaged, or not for this host. */
  async #usable(snapshotId: string): Promise<Manifest | null> {
    try {
      const manifest = await this.#store.manifest(snapshotId);
      await this.#store.inspect(manifest);
      return (await this.incompatibility(manifest)) === null ? manifest : null;
    } catch (error) {
      if (error instanceof EngineError) return null;
      throw error;
    }
  }

  /** What children of a snapshot are made from, its files kept where they are until `pin` is disposed of. */
  async #pinned(snapshotId: string): Promise<{ source: ChildSource; pin: Disposable }> {
    const known = this.#sources.get(snapshotId);
    if (known) {
      const { source, links } = await known;
      const pin = this.#store.reading(links);
      if (this.#sources.get(snapshotId) === known) return { source, pin };
      pin[Symbol.dispose]();
    }
    const { chain, pin } = await this.#store.pinnedChain(snapshotId);
    try {
      const manifest = chain.links.at(-1)!;
      await this.#store.inspect(manifest); // Says better than a read what is missing.
      return { source: await this.#source(manifest, chain), pin };
    } catch (error) {
      pin[Symbol.dispose]();
      throw error;
    }
  }

  async #source(manifest: Manifest, chain?: Chain): Promise<ChildSource> {
    let known = this.#sources.get(manifest.id);
    if (!known) {
      const reading = this.#readSource(manifest, chain);
      this.#sources.set(manifest.id, reading);
      reading.catch(() => this.#forget(manifest.id, reading));
      known = reading;
    }
    return (await known).source;
  }

  #forget(snapshotId: string, reading: Promise<KnownSource>): void {
    if (this.#sources.get(snapshotId) === reading) this.#sources.delete(snapshotId);
  }

  async #readSource(manifest: Manifest, known?: Chain): Promise<KnownSource> {
    const { memoryBytes, vcpus, machine } = manifest;
    const chain = known ?? (await this.#store.chain(manifest));
    const { files, extents, copiedBytes, disks } = chain;
    const statePath = join(this.#store.directory(manifest.id), manifest.files.state.name);
    const source = {
      manifest,
      files,
      extents,
      copiedBytes,
      disks,
      state: await readFile(statePath),
      statePath,
      shape: { accelerator: machine.accelerator, cpuModel: machine.cpuModel, memoryBytes, vcpus },
      image: join(this.home, 'cache', 'images', manifest.image.name),
    };
    return { source, links: chain.links.map(({ id }) => id) };
  }

  async #childHost(manifest: Manifest): Promise<ChildHost> {
    const driver = driverOf(manifest.machine.engine);
    const [abilities, { path }] = await Promise.all([this.#probe(), driver.find()]);
    return {
      runRoot: join(this.home, 'run'),
      driver,
      binary: path,
      shimBinary: this.#shimBinary,
      abilities,
      user: vmmUser(abilities, manifest.machine.accelerator),
      store: this.#store,
      log: this.#log,
    };
  }
}
