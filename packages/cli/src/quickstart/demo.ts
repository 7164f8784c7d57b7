/** The steps of the quickstart. */
import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import type { SnapshotDetail } from '@forkd/api';
import type { Forkd, Sandbox } from '@forkd/sdk';
import { buildTemplate, type EngineName } from '../build.js';
import { CliError } from '../failure.js';
import { duration } from '../format.js';
import type { Stage } from '../progress.js';

/** Randomness in it shows that children do not repeat each other. */
const numpyCode = '__import__("numpy").random.rand(100000).sum()';
/** For templates without a Python. */
const shellCommand = { shell: 'od -An -N8 -tx8 /dev/urandom' };
/** Milliseconds that the clean-up may take altogether. */
const cleanUpMs = 30_000;

export interface ChildResult {
  id: string;
  /** From the start of its fork to a guest that knows who it is. */
  fork_ms: number;
  /** From the start of its fork to its answer. */
  first_answer_ms: number;
  answer: string;
  memory_bytes: number | undefined;
}

export interface DemoResult {
  template: string;
  snapshot_id: string;
  accelerator: string;
  question: string;
  children: ChildResult[];
  all_different: boolean;
  /** What a machine costs without a snapshot, measured when the template was built. */
  cold: { boot_ms: number; warm_ms: number } | null;
}

export class Demo {
  /** Marks our children, so that those of a fork that was cut off are found too. */
  readonly #mark = randomUUID();
  readonly #client: Forkd;
  readonly #template: string;
  readonly #signal: AbortSignal;
  readonly #engine: EngineName | undefined;
  #snapshot: SnapshotDetail | undefined;
  #sandboxes: readonly Sandbox[] = [];
  #children: ChildResult[] = [];
  #hasForked = false;

  constructor(client: Forkd, template: string, signal: AbortSignal, engine?: EngineName) {
    this.#client = client;
    this.#template = template;
    this.#signal = signal;
    this.#engine = engine;
  }

  async build(stage: Stage): Promise<string> {
    const engine = this.#engine;
    // An engine that is asked for by name does not take the template's own tag away from the one that is chosen.
    const request = {
      template: this.#template,
      signal: this.#signal,
      ...(engine && { engine, tag: `${this.#template}-${engine}` }),
    };
    const done = await buildTemplate(this.#client, request, stage);
    this.#snapshot = await this.#client.snapshots.get(done.snapshot_id, this.#signal);
    return done.cached ? 'ready' : 'built';
  }

  async fork(n: number): Promise<string> {
    this.#hasForked = true;
    const metadata = { quickstart: this.#mark };
    const snapshot = this.#theSnapshot().id;
    const { sandboxes, failures } = await this.#client.fork({ snapshot, n, metadata, signal: this.#signal });
    this.#sandboxes = sandboxes;
    const failure = failures[0];
    if (failure !== undefined) {
      const { error, remedy } = failure.error;
      throw new CliError(
        'failed',
        `${failures.length} of ${n} children could not be started: ${error}`,
        remedy,
      );
    }
    return `${sandboxes.length} running`;
  }

  /** Asks each child, as many at once as there are processors: more would only measure each other. */
  async ask(atOnce: number): Promise<string> {
    const waiting = this.#sandboxes.entries();
    const worker = async () => {
      for (const [index, sandbox] of waiting) this.#children[index] = await this.#askOne(sandbox);
    };
    await Promise.all(Array.from({ length: atOnce }, worker));
    const times = this.#children.map((child) => child.first_answer_ms).sort((a, b) => a - b);
    return `first answer after ${duration(times[Math.floor(times.length / 2)])} (median)`;
  }

  async result(): Promise<DemoResult> {
    const snapshot = this.#theSnapshot();
    const answers = new Set(this.#children.map((child) => child.answer));
    return {
      template: this.#template,
      snapshot_id: snapshot.id,
      accelerator: snapshot.accelerator,
      question: this.#hasPython() ? numpyCode : shellCommand.shell,
      children: this.#children,
      all_different: answers.size === this.#children.length,
      cold: coldCost(snapshot),
    };
  }

  /** Removes all children that this demo has made, also those of a fork whose answer never came. */
  async removeChildren(): Promise<void> {
    if (!this.#hasForked) return;
    const signal = AbortSignal.timeout(cleanUpMs);
    setMaxListeners(0, signal);
    const all = await this.#client.sandboxes.list({ signal });
    const ours = all.filter((box) => box.metadata.quickstart === this.#mark);
    const results = await Promise.allSettled(ours.map(({ id }) => this.#client.sandboxes.remove(id, signal)));
    const failed = results.find((result) => result.status === 'rejected');
    if (failed) throw failed.reason;
  }

  /** Whether nobody else uses the daemon by now. */
  async isDaemonIdle(): Promise<boolean> {
    const { sandboxes, builds } = await this.#client.daemon(AbortSignal.timeout(cleanUpMs));
    return sandboxes === 0 && (builds === 0 || this.#signal.aborted);
  }

  async #askOne(sandbox: Sandbox): Promise<ChildResult> {
    const started = performance.now();
    const answer = await this.#answerOf(sandbox);
    const took = performance.now() - started;
    const info = await sandbox.info(this.#signal);
    const forkMs = info.timings?.total_ms ?? 0;
    return {
      id: sandbox.id,
      fork_ms: forkMs,
      first_answer_ms: forkMs + took,
      answer,
      memory_bytes: info.memory_bytes,
    };
  }

  async #answerOf(sandbox: Sandbox): Promise<string> {
    if (this.#hasPython()) {
      const { result, error } = await sandbox.eval(`float(${numpyCode})`, { signal: this.#signal });
      if (error !== null) throw new CliError('failed', `${sandbox.id}: ${error}`, 'build the template again');
      return result ?? '';
    }
    const { stdout, stderr, exit_code } = await sandbox.exec(shellCommand, { signal: this.#signal });
    if (exit_code !== 0)
      throw new CliError('failed', `${sandbox.id}: exit code ${exit_code}: ${stderr.trim()}`);
    return stdout.trim();
  }

  #hasPython(): boolean {
    return this.#theSnapshot().interpreters.includes('python');
  }

  #theSnapshot(): SnapshotDetail {
    if (this.#snapshot === undefined) throw new Error('the build comes first');
    return this.#snapshot;
  }
}

/** Times of the build, as the manifest has them; null when it has none. */
function coldCost(snapshot: SnapshotDetail): DemoResult['cold'] {
  const build = (snapshot.manifest as { build?: { bootMs?: unknown; warmMs?: unknown } } | null)?.build;
  if (typeof build?.bootMs !== 'number' || typeof build.warmMs !== 'number') return null;
  return { boot_ms: build.bootMs, warm_ms: build.warmMs };
}
