/** The client of a daemon. */
import {
  DaemonInfo,
  ForkReport,
  Health,
  HostFacts,
  paths,
  SandboxInfo,
  Tree,
  type TreeNode,
  VersionInfo,
} from '@forkd/api';
import { type AddressOptions, resolveAddress } from './address.js';
import { Exploration } from './explore.js';
import type { ExploreOptions } from './explore-types.js';
import type { ForkOptions, ForkOutcome } from './fork.js';
import { Sandbox } from './sandbox.js';
import { Snapshots } from './snapshots.js';
import { Templates } from './templates.js';
import { Transport } from './transport.js';

const sandboxList = { type: 'array', items: SandboxInfo };

/** Sandboxes of the daemon. */
export class Sandboxes {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** @param options `memory`: measure the memory of each, which takes time. */
  async list(options: { memory?: boolean; signal?: AbortSignal } = {}): Promise<SandboxInfo[]> {
    return this.#transport.json<SandboxInfo[]>('GET', paths.sandboxes(), sandboxList, {
      query: { memory: options.memory ? 'true' : undefined },
      signal: options.signal,
    });
  }

  /** A sandbox that exists; NotFoundError when it does not. */
  async get(id: string, signal?: AbortSignal): Promise<Sandbox> {
    const sandbox = new Sandbox(this.#transport, id);
    await sandbox.info(signal);
    return sandbox;
  }

  /** Ends a sandbox. */
  async remove(id: string, signal?: AbortSignal): Promise<void> {
    await new Sandbox(this.#transport, id).kill(signal);
  }
}

/**
 * Talks to one forkd daemon. Connections are made on demand and kept; a program that has nothing else to do ends without `close`.
 *
 * @example
 * const client = new Forkd();
 * const { sandboxes } = await client.fork({ snapshot: 'python', n: 10 });
 * const answers = await Promise.all(sandboxes.map((box) => box.eval('import os; os.urandom(4).hex()')));
 */
export class Forkd {
  readonly templates: Templates;
  readonly snapshots: Snapshots;
  readonly sandboxes: Sandboxes;
  /** Where it connects to, for people. */
  readonly where: string;
  readonly #transport: Transport;

  constructor(options: AddressOptions = {}) {
    const address = resolveAddress(options);
    this.#transport = new Transport(address);
    this.where = address.where;
    this.templates = new Templates(this.#transport);
    this.snapshots = new Snapshots(this.#transport);
    this.sandboxes = new Sandboxes(this.#transport);
  }

  /** Resolves when a daemon answers. UnreachableError daemon_unreachable when none does. */
  async health(signal?: AbortSignal): Promise<void> {
    await this.#transport.json('GET', paths.health(), Health, { signal, timeoutMs: 10_000 });
  }

  async version(signal?: AbortSignal): Promise<VersionInfo> {
    return this.#transport.json<VersionInfo>('GET', paths.version(), VersionInfo, { signal });
  }

  /** The daemon: pid, addresses, what it holds. */
  async daemon(signal?: AbortSignal): Promise<DaemonInfo> {
    return this.#transport.json<DaemonInfo>('GET', paths.daemon(), DaemonInfo, { signal });
  }

  /** Facts of the host as the engine finds them. `prove` may boot a guest on kvm, which takes up to a minute. */
  async host(options: { prove?: boolean; signal?: AbortSignal } = {}): Promise<HostFacts> {
    return this.#transport.json<HostFacts>('GET', paths.host(), HostFacts, {
      query: { prove: options.prove ? 'true' : undefined },
      signal: options.signal,
      timeoutMs: 180_000,
    });
  }

  /** Starts children of a snapshot. Throws when none could be started. */
  async fork(options: ForkOptions): Promise<ForkOutcome> {
    const json = {
      snapshot_tag: options.snapshot,
      n: options.n,
      env: options.env,
      metadata: options.metadata,
      hostname_prefix: options.hostnamePrefix,
      report: true,
    };
    const report = await this.#transport.json<ForkReport>('POST', paths.sandboxes(), ForkReport, {
      json,
      signal: options.signal,
      timeoutMs: 30 * 60_000,
    });
    return {
      sandboxes: report.sandboxes.map((info) => new Sandbox(this.#transport, info.id, info)),
      failures: report.failures,
    };
  }

  /** Templates, snapshots and sandboxes by lineage, with the memory and disk that each adds. */
  async tree(signal?: AbortSignal): Promise<TreeNode[]> {
    return (await this.#transport.json<Tree>('GET', paths.tree(), Tree, { signal })).nodes;
  }

  /**
   * Forks one state several times, runs a command in each child, and tells how each ended, in the order in which they end.
   *
   * @example
   * const tries = client.explore({ from: box.id, n: 4, command: ['sh', 'try.sh'], keep: 'best', score: ['cat', 'score'] });
   * for await (const { index, exitCode, score } of tries) console.log(index, exitCode, score);
   * const [best] = tries.kept;
   */
  explore(options: ExploreOptions): Exploration {
    return new Exploration(this, options);
  }

  /** A handle for an id, without asking the daemon. */
  sandbox(id: string): Sandbox {
    return new Sandbox(this.#transport, id);
  }

  /** Closes its connections; requests that run are broken off. */
  async close(): Promise<void> {
    await this.#transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
