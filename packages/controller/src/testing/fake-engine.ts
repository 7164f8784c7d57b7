/** An engine for tests. Its machines live in a file, so that a second daemon finds what a first one left. */
import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import {
  type Branching,
  type BranchOptions,
  type BuildOptions,
  type Engine,
  EngineError,
  type EngineOptions,
  type ForkChild,
  type ForkResult,
  type Interpreter,
  type Machine,
  type Manifest,
  type VmmExit,
} from '@forkd/engine';
import { FakeGuest, fakeInterpreter } from './fake-guest.js';

const sha = '0'.repeat(64);

export function fakeManifest(id: string, template: string): Manifest {
  return {
    format: 1,
    id,
    createdAt: Date.now(),
    template: {
      name: template,
      digest: sha,
      interpreters: [{ name: 'js', handle: 1 }],
      user: '',
      env: {},
      prime: [],
    },
    machine: {
      engine: 'qemu',
      engineVersion: '7.2.0',
      engineSha256: sha,
      firmware: {},
      machineType: 'microvm',
      cpuModel: 'max',
      cpuFlags: [],
      accelerator: 'tcg',
      kernel: '6.1',
      kernelSha256: sha,
      agentProtocol: 1,
      tscKhz: 1_000_000,
    },
    memoryBytes: 512 * 1_048_576,
    vcpus: 1,
    diskBytes: 1_048_576,
    image: { name: 'image', sha256: sha, bytes: 1 },
    files: {
      memory: { name: 'memory', bytes: 1, chunks: [sha] },
      state: { name: 'state', bytes: 1, chunks: [sha] },
      disk: { name: 'disk', bytes: 1, chunks: [sha] },
    },
    build: { ms: 1, bootMs: 1, warmMs: 1 },
  } as Manifest;
}

/** A snapshot that was branched off a sandbox. */
function fakeBranch(id: string, sandbox: string, origin: Manifest, previous: Manifest): Manifest {
  const chain = [...(previous.branch?.chain ?? []), previous.id];
  const extents = [
    { kind: 'data' as const, guestOffset: 0, length: 4096, fileOffset: 0 },
    { kind: 'zero' as const, guestOffset: 8192, length: 4096 },
  ];
  const branch = { parent: previous.id, chain, sandbox, mode: 'live', pauseMs: 3, extents };
  return { ...origin, id, createdAt: Date.now(), branch } as unknown as Manifest;
}

/** A snapshot id made of a short word. */
export function snapshotId(word: string): string {
  return `sn-${word.padEnd(16, '0')}`;
}

export interface FakeEngineControls {
  /** Children whose index is in it fail. */
  failing: Set<number>;
  /** What the writing of each branch waits for; it fails when that does. */
  branchWritten: () => Promise<void>;
  /** What it waits for until a branch is durable. */
  branchSynced: () => Promise<void>;
  /** What a listing of snapshots waits for after its look. */
  listed: () => Promise<void>;
  /** Thrown by fork before anything starts. */
  forkError: Error | null;
  /** Milliseconds of a build's step; a step `wait` lasts until the build is cancelled. */
  buildMs: number;
  /** Thrown by a build in its second step. */
  buildError: Error | null;
  /** Ends machines as if their VMMs had died. */
  kill(id: string, exit: VmmExit): void;
  /** Ids that adopt says are gone. */
  gone: Set<string>;
  swept: string[];
  /** Digests of the disks of setups that are kept. */
  setUps: string[];
  /** That of what is built from now on. */
  setUpOfBuilds: string | undefined;
  builds: number;
  machines: Map<string, FakeMachine>;
}

export class FakeMachine implements Machine {
  readonly id: string;
  readonly snapshotId: string;
  readonly vmmPid = 4242;
  readonly manifest: Manifest;
  readonly generation = randomBytes(16).toString('hex');
  readonly hostname: string;
  readonly timings = { spawnMs: 1, graftMs: 1, loadMs: 1, helloMs: 1, totalMs: 4 };
  readonly exited: Promise<VmmExit>;
  readonly guest: FakeGuest;
  readonly #dir: string;
  #interpreter: Interpreter | undefined;
  end: (exit: VmmExit) => void = () => undefined;

  constructor(dir: string, manifest: Manifest, child: Pick<ForkChild, 'id' | 'hostname' | 'env'>) {
    this.#dir = dir;
    this.id = child.id;
    this.hostname = child.hostname;
    this.snapshotId = manifest.id;
    this.manifest = manifest;
    mkdirSync(dir, { recursive: true });
    writeFileSync(
      join(dir, 'machine'),
      JSON.stringify({ id: child.id, hostname: child.hostname, snapshot: manifest.id }),
    );
    mkdirSync(join(dir, 'root'), { recursive: true });
    this.guest = new FakeGuest(join(dir, 'root'));
    this.guest.env = child.env;
    this.exited = new Promise((resolve) => {
      this.end = resolve;
    });
  }

  session = async () => this.guest.session();
  interpreter = async (name = 'js') => {
    if (name !== 'js')
      throw new EngineError('interpreter_not_found', `sandbox ${this.id} has no ${name} interpreter`);
    this.#interpreter ??= fakeInterpreter();
    return this.#interpreter;
  };
  /** How it is branched; set by the engine. */
  capture: (options: BranchOptions) => Promise<Branching> = async () => {
    throw new EngineError('unsupported', 'the machine of this test captures nothing');
  };
  branch = (options: BranchOptions) => this.capture(options);
  pause = async () => undefined;
  resume = async () => undefined;
  logs = async () => ({ console: 'console text', vmm: 'vmm text' });
  memoryBytes = async () => 1_048_576;
  destroy = async () => {
    await delay(20);
    this.guest.end();
    rmSync(this.#dir, { recursive: true, force: true });
    this.end({ kind: 'signaled', signal: 'SIGKILL', lastWords: '' });
  };
  detach = async () => this.guest.end();
}

/** Makes an engine on `options.home`, with controls for what shall go wrong. */
export function fakeEngine(options: EngineOptions): Engine & { controls: FakeEngineControls } {
  const { home } = options;
  const runDir = (id: string) => join(home, 'run', id);
  const snapshotDir = (id: string) => join(home, 'snapshots', id);
  for (const name of ['run', 'snapshots']) mkdirSync(join(home, name), { recursive: true });
  const machines = new Map<string, FakeMachine>();
  const durable = new Set<string>();
  const controls: FakeEngineControls = {
    failing: new Set(),
    branchWritten: async () => undefined,
    listed: async () => undefined,
    branchSynced: async () => undefined,
    forkError: null,
    buildMs: 1,
    buildError: null,
    kill: (id, exit) => machines.get(id)?.end(exit),
    gone: new Set(),
    swept: [],
    setUps: [],
    setUpOfBuilds: undefined,
    builds: 0,
    machines,
  };
  const readManifest = async (id: string): Promise<Manifest> => {
    try {
      return JSON.parse(readFileSync(join(snapshotDir(id), 'manifest.json'), 'utf8')) as Manifest;
    } catch (cause) {
      throw new EngineError('snapshot_not_found', `there is no snapshot ${id}`, { cause });
    }
  };
  const make = (child: Pick<ForkChild, 'id' | 'hostname' | 'env'>, manifest: Manifest) => {
    const machine = new FakeMachine(runDir(child.id), manifest, child);
    machines.set(child.id, machine);
    let previous = manifest;
    machine.capture = async (options) => {
      options.signal?.throwIfAborted();
      const captured = fakeBranch(options.snapshotId, child.id, manifest, previous);
      const ready = controls.branchWritten().then(() => {
        mkdirSync(snapshotDir(captured.id), { recursive: true });
        writeFileSync(join(snapshotDir(captured.id), 'manifest.json'), JSON.stringify(captured));
        previous = captured;
        return { manifest: captured, copyMs: 2, physicalBytes: 4096, logicalBytes: 8192 };
      });
      ready.catch(() => undefined);
      return { snapshotId: captured.id, mode: 'live', pauseMs: 3, ready };
    };
    return machine;
  };
  const part = {
    home,
    controls,
    checkHost: async () => [{ name: 'qemu', state: 'pass' as const, found: 'a fake' }],
    choice: async () => ({ engine: 'qemu' as const, accelerator: 'tcg' as const, reason: 'a fake' }),
    parseTemplate: async (yaml: string, name: string) => {
      if (yaml.includes('bad')) throw new EngineError('template_invalid', `template ${name}: line 1: bad`);
      return { name: /^name: (\S+)/m.exec(yaml)?.[1], description: 'a fake' };
    },
    buildTemplate: async (build: BuildOptions & { current?: string }) => {
      controls.builds += 1;
      build.onProgress?.({ type: 'step', step: 'base', title: 'Base', state: 'running' });
      await delay(controls.buildMs, undefined, build.signal ? { signal: build.signal } : {});
      if (controls.buildError !== null) throw controls.buildError;
      build.onProgress?.({ type: 'log', step: 'base', text: 'a line' });
      build.onProgress?.({ type: 'step', step: 'base', title: 'Base', state: 'done', ms: 1 });
      if (build.current !== undefined && !build.noCache) {
        return {
          snapshotId: build.current,
          manifest: await readManifest(build.current),
          cached: true,
          ms: 1,
          logFile: '',
        };
      }
      const id = snapshotId(randomBytes(8).toString('hex'));
      const manifest = fakeManifest(id, build.name);
      if (controls.setUpOfBuilds) manifest.build.setUp = controls.setUpOfBuilds;
      mkdirSync(snapshotDir(id), { recursive: true });
      writeFileSync(join(snapshotDir(id), 'manifest.json'), JSON.stringify(manifest));
      return { snapshotId: id, manifest, cached: false, ms: 1, logFile: '' };
    },
    listSnapshots: async () => {
      const ids = readdirSync(join(home, 'snapshots'));
      await controls.listed();
      return ids;
    },
    readManifest,
    snapshotDirectory: snapshotDir,
    snapshotSizes: async () => ({ memoryLogical: 2, memoryPhysical: 1, state: 1, diskPhysical: 1, image: 1 }),
    freedBytes: async (ids: readonly string[]) => 3 * ids.length,
    collectSetUps: async (needed: ReadonlySet<string>, dryRun: boolean) => {
      const unused = controls.setUps.filter((digest) => !needed.has(digest));
      if (!dryRun) controls.setUps = controls.setUps.filter((digest) => needed.has(digest));
      return { disks: unused.length, bytes: 10 * unused.length };
    },
    incompatibility: async () => null,
    verifySnapshot: async () => ({ problems: [], bytesRead: 3 }),
    flattenSnapshot: readManifest,
    onFlattened: () => undefined,
    durable: async (id: string) => {
      await readManifest(id);
      if (!durable.has(id)) await controls.branchSynced();
      durable.add(id);
    },
    isDurable: (id: string) => durable.has(id),
    removeSnapshot: async (id: string) => {
      await readManifest(id);
      rmSync(snapshotDir(id), { recursive: true });
    },
    fork: async (request: Parameters<Engine['fork']>[0]): Promise<ForkResult[]> => {
      if (controls.forkError !== null) throw controls.forkError;
      const manifest = await readManifest(request.snapshotId);
      return request.children.map((child, index) => {
        const result: ForkResult = controls.failing.has(index)
          ? { ok: false, id: child.id, error: new EngineError('vmm_failed', `child ${index} failed`) }
          : { ok: true, id: child.id, machine: make(child, manifest) };
        request.onChild?.(result);
        return result;
      });
    },
    listRunDirectories: async () => readdirSync(join(home, 'run')),
    adopt: async (id: string) => {
      if (controls.gone.has(id)) {
        const exit: VmmExit = { kind: 'exited', code: 3, lastWords: 'last words' };
        throw new EngineError('sandbox_exited', `${id} is gone`, { details: { exit } });
      }
      const text = readFileSync(join(runDir(id), 'machine'), 'utf8');
      const { hostname, snapshot } = JSON.parse(text) as { hostname: string; snapshot: string };
      return make({ id, hostname, env: {} }, await readManifest(snapshot));
    },
    sweep: async (id: string) => {
      controls.swept.push(id);
      rmSync(runDir(id), { recursive: true, force: true });
    },
    sweepLeftovers: async () => [],
    standbyReport: () => ({ process: none, primed: none }),
    [Symbol.asyncDispose]: async () => {
      for (const machine of machines.values()) machine.guest.end();
    },
  };
  return part as unknown as Engine & { controls: FakeEngineControls };
}

const none = { ready: 0, hits: 0, misses: 0 };
